"""A real Kubernetes control plane on loopback, for tests: nothing in it is a mock but the nodes.

`build` makes the programs once, `planes.Planes` runs a hub and workers of them, `nodes` gives the
workers GPUs. README.md shows how to use it.
"""
