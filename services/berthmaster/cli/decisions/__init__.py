"""`berth replay-decisions`: decisions repeated from the log, and how well they were made."""
