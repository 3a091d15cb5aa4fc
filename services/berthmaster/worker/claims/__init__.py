"""Writes ClusterClaims of a managed cluster from its score.

May live here: ClusterClaims in the managed cluster, and when a change is worth a write.
Must not: compute scores (scorer), or write on the hub (ocm).
"""
