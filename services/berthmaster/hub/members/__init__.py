"""Reports a hub's cluster inventories as facts.

Belongs here: the meaning of inventory objects for the fleet. Does not belong here: decisions,
changes of objects, workloads of the bus.
"""
