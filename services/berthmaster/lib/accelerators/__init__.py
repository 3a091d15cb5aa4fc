"""The one list of names by which pods request accelerators, and how each is allocated.

The package knows names and labels. It knows nothing of nodes, queues or messages.
"""
