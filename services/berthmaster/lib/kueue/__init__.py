"""Kueue: its kinds, the contract of a dispatcher, its quota. Pure.

May live here: what is true of Kueue itself, so that several services read its objects alike. Must
not: what one service makes of an object, such as the best cluster or the next write.
"""
