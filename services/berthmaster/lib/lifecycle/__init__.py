"""The lifecycle of workloads: the state table, and the pure fold from events to state.

This package holds the valid transitions and the state after an event history. I/O, clocks and
randomness belong elsewhere. Writers and readers of events ask here whether an event is valid.
"""
