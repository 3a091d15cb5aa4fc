"""What makes a process a good service: settings, logs, health, metrics, drain, owned tasks.

May live here: what every service needs in the same way.
Must not: NATS (that is bus), messages, or anything only one service needs.
"""
