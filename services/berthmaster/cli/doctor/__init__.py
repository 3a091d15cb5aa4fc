"""`berth doctor`: what stands between a hub, its workers and us, before anything is installed.

May live here: reading clusters, and what follows from what was read: each finding says what it
means, the exact change, and how to undo it.
Must not: a write of any kind to any cluster, and the bus.
"""
