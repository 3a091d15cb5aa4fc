"""Pods in the objects of Kueue and Karmada, read as pod sets of requests.

A Workload of Kueue holds pod templates, a ResourceBinding of Karmada the requests of a replica.
Both become the same structs here, and then a pod set.
"""
