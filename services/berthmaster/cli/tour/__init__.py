"""`berth tour`: Jobs on a hub that show the choice of clusters."""
