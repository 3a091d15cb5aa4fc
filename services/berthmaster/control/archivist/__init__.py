"""Moves the events of ended workloads to the archive and leaves a tombstone that keeps the id used.

May live here: when an event history is old enough, and the order of copying and purging. Must not:
append to the event history of a workload.
"""
