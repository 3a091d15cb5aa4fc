"""The pure placement engine, in five packages: fleet, scoring, fitting, queueing, fleetview.

``fleet`` is the capacity and what of it is free. ``scoring`` says what a node is worth to a job and
ranks clusters. ``fitting`` chooses nodes and GPUs in a cluster. ``queueing`` orders jobs and says
who is preempted. ``fleetview`` folds facts into a fleet, filters the clusters for a request and
ranks the rest.

May live here: functions from a snapshot and a request to a ranking with its reasons. Must not: I/O,
clocks, randomness of its own, or the identity of the service that calls.
"""
