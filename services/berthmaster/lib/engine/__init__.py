"""The pure placement engine, in four rooms: fleet, scoring, fitting, queueing.

``fleet`` is what there is and what of it is free; ``scoring`` is what a place is worth to a job and
how clusters rank; ``fitting`` chooses nodes and GPUs inside a cluster; ``queueing`` says whose turn
it is and for whom room is kept. Scoring stands on fleet, fitting on both, queueing on fleet alone.

May live here: functions from a frozen snapshot and a request to a ranking with its reasons.
Must not: I/O of any sort, clocks, randomness of its own, knowledge of who asks.
"""
