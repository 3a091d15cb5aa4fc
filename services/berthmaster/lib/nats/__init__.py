"""NATS: subjects, connection, streams, mirrors of facts, durable consumers, endpoints, leases.

May live here: what would change if the bus were another one. Must not: the event log
(lib/event_log), rights (lib/access), what a message means for one service, or a decision.
"""
