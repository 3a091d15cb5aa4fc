"""Decisions: the next step of each workload, and its cluster."""
