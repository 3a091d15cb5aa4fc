"""What is known of the hub and of the bus, and of each workload in hand: folds, and no decision."""
