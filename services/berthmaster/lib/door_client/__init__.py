"""The client of the door (agent API) for services of a worker cluster: join, facts, leases, polls,
reports.

Belongs here: the requests of a cluster's agent and their time limits. Not here: streams, because an
agent has no permission on them.
"""
