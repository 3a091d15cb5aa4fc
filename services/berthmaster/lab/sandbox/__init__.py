"""`berth lab`: a hub and workers with the real Kueue on this machine, for trying Berthmaster.

`layout` says which clusters there are, `state` where the running lab is found, and `supervise` is
the process that the clusters belong to.
"""
