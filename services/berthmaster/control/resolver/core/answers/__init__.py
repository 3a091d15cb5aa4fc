"""What people are told: why there, why not yet, where a request would go, what would move.

May live here: readings of what is known, made with the very functions that decide.
Must not: anything that another reading or a decision depends on.
"""
