"""What there is, as arrays, what of it is free, and which of it suits a request."""
