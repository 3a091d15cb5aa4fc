"""Runs the services as processes for `berth up`, and prepares the folder of a hub's pod.

May live here: the processes of a plan, starting, watching and stopping them, the data folder. Must
not: flags of commands, tables, or what a single service does.
"""
