"""Whose turn it is: shares and accounts of queues, order of jobs, room kept for some."""
