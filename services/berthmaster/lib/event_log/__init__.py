"""The event log of workloads: guarded appends, commits, event histories, detection of damage.

Belongs here: how events are stored and read, high-water marks of a log, and their comparison. Not
here: repair (cli/recover), or the meaning of an event for one service.
"""
