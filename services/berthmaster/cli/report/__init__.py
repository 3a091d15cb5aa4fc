"""`berth report`: usage of ended jobs, and its tables."""
