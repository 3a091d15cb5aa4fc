"""The event log of workloads: guarded appends, commits, event histories, detection of damage.

May live here: how events are stored and read, the marks of a log, and their comparison. Must not:
repair (cli/recover does), or what an event means for one service.
"""
