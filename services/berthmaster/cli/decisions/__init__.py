"""`berth replay-decisions`: repeats decisions from the log and measures their quality."""
