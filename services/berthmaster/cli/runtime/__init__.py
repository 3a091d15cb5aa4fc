"""`berth runtime`: list, show, set and remove runtimes."""
