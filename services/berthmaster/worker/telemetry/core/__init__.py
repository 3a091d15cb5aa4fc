"""What the service decides: events in, instructions out; no I/O, no clock of its own."""
