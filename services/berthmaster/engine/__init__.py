"""The pure placement engine: fleet arrays, fit, score, rank, queues.

May live here: functions from a frozen snapshot and a request to a ranking with its reasons.
Must not: I/O of any sort, clocks, randomness of its own, knowledge of who asks.
"""
