"""`berth demo`: the demonstration, replays of traces, the tour of a hub, and their screens."""
