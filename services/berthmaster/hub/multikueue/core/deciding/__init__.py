"""What follows from what is known: the next step of each workload, and where it goes."""
