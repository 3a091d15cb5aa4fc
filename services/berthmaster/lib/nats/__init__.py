"""NATS: subjects, connection, streams, fact mirrors, durable consumers, endpoints and leases.

Belongs here: code that another message bus would change. Not here: the event log (lib/event_log),
permissions (lib/access), the meaning of a message for one service, or a decision.
"""
