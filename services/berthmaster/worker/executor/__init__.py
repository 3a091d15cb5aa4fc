"""Runs placements in one cluster: claims them, creates their Jobs, reports how they end.

May live here: the executor's core, the protocol between the core and a cluster, and the shell. The
protocol names no kind of cluster: a Runtime implements it.
"""
