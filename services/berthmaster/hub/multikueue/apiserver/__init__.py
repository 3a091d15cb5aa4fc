"""All that speaks to the API server of the hub."""
