"""`berth lab`: a hub and workers with the real Kueue on this machine, for trying Berthmaster.

`layout` defines the clusters, `state` finds the running lab, and `supervise` is the parent process
of the clusters.
"""
