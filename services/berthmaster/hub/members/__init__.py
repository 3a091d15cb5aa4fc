"""Reports what a hub knows of its clusters as facts.

May live here: the meaning of objects of cluster inventories for the fleet.
Must not: decide anything, change an object, or know workloads on the bus.
"""
