"""Kueue for tests: its manager beside the API servers of a hub and workers.

``setup.kueue(...)`` starts and stops Kueue, and offers methods to use and break it.
"""
