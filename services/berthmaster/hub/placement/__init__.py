"""Decides OCM Placements that OCM's own scheduler ignores, with the semantics of OCM.

OCM ignores a Placement with the annotation
``cluster.open-cluster-management.io/experimental-scheduling-disable: "true"``. This service writes
its PlacementDecisions by the same formulas, milliseconds after a change. Two differences are on
purpose: a wrong edit leaves the decisions unchanged, and every ranking is readable.
"""
