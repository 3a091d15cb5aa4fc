"""Access to the bus: keys, accounts, users, certificates and the table of permissions.

Belongs here: whether a client may connect, publish or subscribe, and how a client gets credentials.
Not here: streams, or the meaning of a message.
"""
