"""Jobs: `berth submit`, `jobs`, `job`, `why`, `watch`, `wait`, `logs`, `cancel`, `hold`, `move`."""
