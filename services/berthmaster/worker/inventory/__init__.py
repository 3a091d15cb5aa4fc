"""What a worker cluster has and does, and what a hub knows of its clusters, as facts of the fleet.

May live here: what objects of Kubernetes, Kueue and cluster inventories mean for the fleet.
Must not: decide anything, change any object, or know of workloads on the bus.
"""
