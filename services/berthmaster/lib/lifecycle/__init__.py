"""The lives of workloads and placements as tables, and the pure folds over them.

May live here: which event may follow which, and what a workload's story adds up to.
Must not: I/O, clocks, randomness; whoever writes or reads an event asks here whether it may be.
"""
