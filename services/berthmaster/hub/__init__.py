"""Services beside a hub's API server, where Kueue, OCM and Karmada see us."""
