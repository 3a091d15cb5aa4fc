"""What the fleet's clusters can do now, written where Open Cluster Management and others look.

May live here: AddOnPlacementScores, properties of ClusterProfiles that we manage, ClusterClaims of
a managed cluster, and when each is worth a write.
Must not: how a score comes about (the scorer's), what a hub says of its clusters (inventory's), or
a choice of clusters (Open Cluster Management's own, or placement's).
"""
