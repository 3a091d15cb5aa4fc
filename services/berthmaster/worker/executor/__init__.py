"""Carries placements out in one cluster: claims them, has their pods made, says how they end.

May live here: the executor's core, the words between it and a cluster, and the shell that drives it
on the bus. Must not: any particular kind of cluster; whoever has one hands in a Runtime.
"""
