"""`berth context` and `berth login`: the bus of the commands, and the identity for it."""
