"""`berth up`: all services on this machine, and their screen."""
