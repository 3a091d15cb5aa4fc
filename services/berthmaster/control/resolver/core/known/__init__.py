"""The resolver's knowledge: the fold of its messages, and derived data for speed.

This package holds Knowledge, Derived, expectations and the content of snapshots. Only a message
changes anything here, and decisions belong elsewhere.
"""
