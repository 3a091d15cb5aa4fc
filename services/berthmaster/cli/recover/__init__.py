"""`berth recover`: builds a new event log from the remains of a damaged one.

Belongs here: which events are applied, what clusters hold, and how the new stream replaces the old
one. Not here: repairing a stream in place.
"""
