"""Emulated clusters and virtual time, to try Berthmaster and compare policies without a GPU."""
