"""Scores of nodes and clusters, computed from facts and telemetry, with the age of their inputs.

This package has the score formulas, the dead band and the ageing. Choosing a cluster for a job
belongs to the resolver.
"""
