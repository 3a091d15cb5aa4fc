"""The kinds of job objects for an attempt, a file each. table.py lists the kinds."""
