"""`berth problems`: problems, dead letters, cordons."""
