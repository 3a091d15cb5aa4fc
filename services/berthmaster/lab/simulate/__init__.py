"""Simulates fleets and job lists in virtual time, under policies by name.

May live here: a simulator that drives the resolver's own core, baselines of the literature and the
metrics that compare them. Must not: the bus, real clocks, or randomness without a seed. Only
``traces`` reads files.
"""
