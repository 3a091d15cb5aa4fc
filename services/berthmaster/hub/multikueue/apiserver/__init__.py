"""Access to the API server of the hub."""
