"""Runs Berthmaster's services as processes: of this machine for `berth up`, of one pod for a side.

May live here: which processes a plan means, starting, watching and stopping them, the data folder.
Must not: flags of commands, tables, or what a single service does.
"""
