"""The capacity of the fleet as arrays: what there is, what is free, what suits a request."""
