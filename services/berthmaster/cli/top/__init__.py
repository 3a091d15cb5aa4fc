"""`berth top`: a live table of clusters, nodes, jobs or queues."""
