"""`berth demo`: the demonstration, replays of traces, and their screens."""
