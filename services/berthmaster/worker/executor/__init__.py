"""Run placements in one cluster: claim them, create their Jobs, report their ends.

This package holds the executor's core, the protocol between core and cluster, and the shell. The
protocol is independent of the kind of cluster: a Runtime implements it.
"""
