"""Pods as other systems' objects describe them, read as pod sets of requests.

Kueue's Workloads have pod templates, Karmada's ResourceBindings what a replica asks for: both come
to the same structs, and those to a pod set, here and nowhere else.
"""
