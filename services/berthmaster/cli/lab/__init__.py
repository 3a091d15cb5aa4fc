"""`berth lab`: start, show and stop the lab of this machine, and its progress on the screen."""
