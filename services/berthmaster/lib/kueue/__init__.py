"""Kueue: its kinds, a dispatcher's contract, quota. Pure.

Allowed here: facts of Kueue itself, so that all services read its objects alike. Not allowed: one
service's conclusion from an object, such as the best cluster or the next write.
"""
