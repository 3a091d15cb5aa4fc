"""Writes scores where Open Cluster Management reads them.

May live here: AddOnPlacementScores, properties of managed ClusterProfiles, and when a change is
worth a write. Must not: compute scores (scorer), read cluster inventories (members), or choose
clusters (placement, or OCM itself).
"""
