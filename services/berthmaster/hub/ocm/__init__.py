"""Writes scores where Open Cluster Management reads them.

Belongs here: AddOnPlacementScores, properties of managed ClusterProfiles, and when a change is
worth a write. Not here: computing scores (scorer), reading cluster inventories (members), choosing
clusters (placement, or OCM itself).
"""
