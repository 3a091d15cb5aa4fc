"""Services in a worker cluster. They speak to the door by lib/door_client and read no stream."""
