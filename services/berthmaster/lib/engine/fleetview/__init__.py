"""The fleet as facts report it, and which clusters can take a request, best first.

The resolver uses the same code for requests on NATS as multikueue for Workloads on a hub. May live
here: the fold of facts and of operators' settings, filters, rankings. Must not: the log of
workloads, the order of jobs, or anything that writes.
"""
