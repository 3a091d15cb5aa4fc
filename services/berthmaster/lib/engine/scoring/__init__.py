"""What a node or a cluster is worth to one kind of pod, and the order that follows."""
