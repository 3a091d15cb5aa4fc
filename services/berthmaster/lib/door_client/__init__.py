"""The client of the door for services of a worker cluster: join, facts, lease, polls, reports.

May live here: the requests of a cluster's agent and their time limits. Must not: streams, because
an agent has no right to one.
"""
