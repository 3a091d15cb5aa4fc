"""`berth context` and `berth login`: which bus the commands use, and with which identity."""
