"""Reports what a worker cluster has, and on a hub what the hub knows of its clusters, as facts.

May live here: the meaning of objects of Kubernetes, Kueue and cluster inventories for the fleet.
Must not: decide anything, change an object, or know workloads on the bus.
"""
