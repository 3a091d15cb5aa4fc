"""The capacity of the fleet as arrays: total, free, and suitable for a request."""
