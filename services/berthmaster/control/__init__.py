"""Services beside NATS, each a process of its own. They share lib/, and never each other."""
