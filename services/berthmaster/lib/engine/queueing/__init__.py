"""The order of jobs: shares and accounts of queues, reservations, preemption, durations."""
