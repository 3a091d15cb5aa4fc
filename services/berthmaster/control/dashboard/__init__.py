"""Serves the web page with the fleet, the jobs and the queues. The page decides nothing.

The core folds facts, events and samples into small documents on a board. Each browser gets the
documents that changed since its last read, so a slow browser gets fewer updates, not a longer
queue.
"""
