"""Selection of clusters for a Placement: sets, filters and prioritizers over a snapshot. Pure."""
