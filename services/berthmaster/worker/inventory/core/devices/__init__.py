"""GPUs and devices of a node, the way they are allocated, and their use by pods."""
