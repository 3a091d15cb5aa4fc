"""The dispatcher on a hub: publishes the Workloads of MultiKueue and nominates their clusters.

May live here: what follows from the hub's Kueue objects, the log and the facts. Must not: repeat
the work of Kueue (order, quota, preemption).
"""
