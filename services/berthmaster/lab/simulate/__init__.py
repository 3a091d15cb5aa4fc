"""Fleets and job lists in virtual time, under policies by name: what would have been.

May live here: a simulator that drives the resolver's own core, baselines of the literature beside
it, and the figures that compare them. Must not: the bus, real clocks, chance that is not drawn from
a seed. Only ``traces`` reads files.
"""
