"""Computes scores of nodes and clusters from facts and telemetry, with the age of their inputs.

May live here: score formulas, the dead band, ageing. Must not: choose a cluster for a job.
"""
