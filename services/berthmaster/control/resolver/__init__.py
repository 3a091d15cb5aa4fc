"""The decider: open workloads and facts in, one chain of decisions out, each with its record.

May live here: queues, gangs, group commit, waiting, withdrawing, takeover.
Must not: starting anything on a cluster, or another service.
"""
