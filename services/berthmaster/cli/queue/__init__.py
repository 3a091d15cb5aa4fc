"""`berth queue`: queues and their quota shares."""
