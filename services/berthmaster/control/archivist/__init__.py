"""Moves stories that have ended to the archive and leaves the tombstone that keeps their id used.

May live here: when a story is old enough, and the order of copying and purging.
Must not: appending to a workload's life, or another service.
"""
