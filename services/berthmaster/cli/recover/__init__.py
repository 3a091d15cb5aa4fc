"""Builds a new log from what is left of a damaged one: `berth recover`.

May live here: which events count, what clusters hold, and how the new stream takes its place.
Must not: repair of a stream in place.
"""
