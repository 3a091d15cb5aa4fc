"""What every service process needs: settings, logs, health, metrics, owned tasks, a drained end.

Must not: NATS (lib/nats), messages, or anything that one service alone needs.
"""
