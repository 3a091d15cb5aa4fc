"""`berth doctor`: checks a hub, its workers and the bus before an installation.

Belongs here: readers of clusters, and findings. Each finding has its meaning, the exact change and
the way back. Not here: writes to a cluster, or use of the bus.
"""
