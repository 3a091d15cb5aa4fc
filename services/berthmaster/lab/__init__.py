"""Emulated clusters and virtual time: to try Berthmaster and to compare policies without a GPU."""
