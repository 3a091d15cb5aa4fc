"""`berth whatif`: the jobs that a change of the fleet would move."""
