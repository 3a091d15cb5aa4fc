"""The fleet as facts tell it, and which clusters could take a request, best first.

The same code, filters and words for a request on NATS (resolver) and for a Workload on a hub
(multikueue). May live here: the fold of facts and of what operators set, filters, rankings.
Must not: the log of workloads, queues' turns, anything that writes; whoever decides keeps those.
"""
