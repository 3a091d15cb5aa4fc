"""Validation of requests, by field: the gateway and the resolver's dry run use the same rules."""
