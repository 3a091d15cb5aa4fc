"""A real Kubernetes control plane on loopback, for tests: only the nodes are mocks.

`build` compiles the programs once, `planes.Planes` runs a hub and workers, and `nodes` gives the
workers GPUs. README.md shows the use.
"""
