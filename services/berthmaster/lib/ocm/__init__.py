"""Shared code of services that maintain objects of Open Cluster Management's clusters.

Allowed here: the pace of writes, the ownership of objects, the view of a cluster's score. Not
allowed: the set of objects, or their content.
"""
