"""Kueue for tests: its manager beside the API servers of a hub and workers.

``setup.kueue(...)`` starts and stops it, and has the hands to use and break it.
"""
