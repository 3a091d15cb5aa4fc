"""How a service of a worker cluster speaks to the door: join, facts, lease, polls, answers.

May live here: the requests of a cluster's agent and their time limits. Must not: streams; an agent
has no right to one.
"""
