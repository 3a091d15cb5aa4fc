"""Runs the services as processes for `berth up`, and prepares the folder of a hub's pod.

Belongs here: the processes of a plan, their start, supervision and stop, the data folder. Not here:
flags of commands, tables, or the work of a single service.
"""
