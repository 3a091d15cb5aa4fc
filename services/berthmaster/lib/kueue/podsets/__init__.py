"""Pods as objects of Kueue and Karmada describe them, read as pod sets of requests.

A Workload of Kueue has pod templates, a ResourceBinding of Karmada the requests of a replica. Both
become the same structs here, and those become a pod set.
"""
