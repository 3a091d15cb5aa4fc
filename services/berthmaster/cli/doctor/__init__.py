"""`berth doctor`: checks a hub, its workers and the bus before anything is installed.

May live here: readers of clusters, and findings. Each finding has its meaning, the exact change and
the way back. Must not: write to any cluster, or use the bus.
"""
