"""`berth tour`: Jobs on a hub that show how the cluster is chosen."""
