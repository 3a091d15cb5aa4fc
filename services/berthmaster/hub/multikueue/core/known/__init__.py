"""Knowledge of hub and bus, and of each open workload: folds without decisions."""
