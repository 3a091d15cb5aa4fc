"""The service's decisions, pure: events and the time are passed in, instructions are returned."""
