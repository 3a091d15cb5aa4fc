"""`berth whatif`: what a change of the fleet would move."""
