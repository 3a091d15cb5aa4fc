"""Commands about the fleet, and their screens: gpus, top, problems, cordon, lost, queue."""
