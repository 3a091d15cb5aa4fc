"""Services beside the API server of a hub, where Kueue, OCM and Karmada run."""
