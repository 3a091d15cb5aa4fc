"""Creates, verifies, renews and revokes the access of a hub's MultiKueue to its workers.

The objects on both sides are the only memory: each step follows from them and may be repeated.
Tokens exist in Secrets and in this process, never on the bus, in a log or in an Event.
"""
