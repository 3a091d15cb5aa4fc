"""`berth tenant`: keys of tenants."""
