"""The only list of names by which pods request accelerators, and how each is allocated.

The package knows names and labels. Nodes, queues and messages are out of scope.
"""
