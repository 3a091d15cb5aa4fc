"""Base of every service process: settings, logs, health, metrics, owned tasks, a drained end.

Not here: NATS (lib/nats), messages, or code for one service only.
"""
