"""The lifecycle of workloads and attempts as a table, and the pure fold from events to state.

May live here: which event may follow which, and the state that an event history adds up to. Must
not: I/O, clocks, randomness. Writers and readers of an event ask here whether it is valid.
"""
