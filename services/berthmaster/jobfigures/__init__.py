"""From readings of nodes to figures of jobs: whose a GPU was, what it did for them, and since when
it did nothing. For who knows pods: of a Kubernetes cluster, or emulated.

May live here: the attribution of readings to pods, and sums over time. Must not: I/O, clocks,
objects of an API server; times and pods are handed in.
"""
