"""Services in a worker cluster. They speak to the door only (lib/door_client), to no stream."""
