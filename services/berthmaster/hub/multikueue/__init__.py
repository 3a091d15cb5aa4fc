"""The reconciler on a hub: shows what MultiKueue sends on the bus, and chooses where it goes.

May live here: what follows from a hub's Kueue objects, the log and the facts, and what is to be
done about it.
Must not: Kueue's own work (order, quota, preemption), and anything that another service does.
"""
