"""Access to the bus: keys, accounts, users, certificates and the table of permissions.

May live here: what decides whether a client may connect, publish or subscribe, and how a client
gets a credential. Must not: streams, or what a message means.
"""
