"""Placements of Open Cluster Management, decided by us.

OCM's scheduler takes every Placement but those that are annotated
``cluster.open-cluster-management.io/experimental-scheduling-disable: "true"``. Those are ours: the
same words, the same formulas, the same PlacementDecisions, decided within milliseconds of a change.
Where we do better on purpose: an edit that is wrong leaves the decisions as they were, and every
ranking can be read.
"""
