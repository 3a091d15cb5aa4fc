"""Who may do what on the bus: keys, accounts and users, certificates, the table of permissions.

May live here: what decides whether somebody may connect, publish or subscribe, and how they get a
key. Must not: streams, or what a message means.
"""
