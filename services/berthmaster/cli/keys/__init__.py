"""`berth keys`: signs and revokes users, in the data folder of an own bus."""
