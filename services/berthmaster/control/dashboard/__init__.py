"""The page on which people see the fleet, the jobs and the queues: it subscribes like anyone else.

It decides nothing and orders nothing. What is known is folded from facts, events and readings
(core.py) onto a board of small documents (board.py); each browser that looks is sent what changed
since it last read (routes.py), so a slow one gets fewer updates and never an ever longer queue.
"""
