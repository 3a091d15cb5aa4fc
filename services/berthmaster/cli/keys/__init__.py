"""`berth keys`: sign and revoke users, in the data folder of a bus of ours."""
