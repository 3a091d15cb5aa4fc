"""From what is known to a plan: a draft that is charged while it is made, and given back.

May live here: cycles, turns, reservations, the draft and its record.
Must not: changing what is known, or explaining.
"""
