"""Which GPUs and devices a node has, how they are handed out, and what its pods hold of them."""
