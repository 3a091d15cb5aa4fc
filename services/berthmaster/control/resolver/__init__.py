"""Decides where jobs run: open workloads and facts in, one chain of recorded decisions out.

May live here: queue order, gangs, group commits, reservations, withdrawals, takeover by a replica.
Must not: start anything in a cluster.
"""
