"""`berth recover`: builds a new event log from what is left of a damaged one.

May live here: which events are applied, what clusters hold, and how the new stream replaces the old
one. Must not: repair a stream in place.
"""
