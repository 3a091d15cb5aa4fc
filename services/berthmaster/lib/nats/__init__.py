"""All that knows NATS: subjects, connection, event log, mirror of facts, consumers, endpoints.

May live here: whatever would have to change if the bus were another one.
Must not: what a message means for a service, or a decision of any kind.
"""
