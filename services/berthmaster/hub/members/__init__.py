"""Reports a hub's cluster inventories as facts.

Belongs here: the meaning of inventory objects for the fleet. Not here: decisions, changes of
objects, workloads of the bus.
"""
