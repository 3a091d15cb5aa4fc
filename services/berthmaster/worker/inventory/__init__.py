"""Reports what a worker cluster has as facts.

May live here: the meaning of objects of Kubernetes and Kueue for the fleet.
Must not: decide anything, change an object, or know workloads on the bus.
"""
