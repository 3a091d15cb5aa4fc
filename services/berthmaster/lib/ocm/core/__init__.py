"""The service's decisions, pure: time and inputs go in, instructions come out."""
