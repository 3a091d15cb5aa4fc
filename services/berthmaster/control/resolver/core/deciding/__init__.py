"""From knowledge to a plan: a draft charges capacity while it is made, and releases all at its end.

This package holds cycles, turns, reservations, the draft and its record. Changes of knowledge and
explanations belong elsewhere.
"""
