"""What pods ask accelerators for by, and how each is had: the one list of such names.

A layer below the engine: it knows names, and nothing of nodes, queues or messages.
"""
