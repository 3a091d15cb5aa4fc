"""Validation of requests, by field. The gateway and the resolver's dry run apply the same rules."""
