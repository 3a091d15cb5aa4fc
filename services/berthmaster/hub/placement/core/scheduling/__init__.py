"""Which clusters a Placement gets: sets, filters and prioritizers over one snapshot. Pure."""
