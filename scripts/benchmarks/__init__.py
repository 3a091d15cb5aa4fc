"""What `scripts/bench` runs: each module measures one budget of the design."""
