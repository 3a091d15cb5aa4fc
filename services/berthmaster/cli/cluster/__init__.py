"""`berth cluster`: keys, Secrets and credentials of worker clusters."""
