"""`berth context` and `berth login`: which bus commands talk to, and as whom."""
