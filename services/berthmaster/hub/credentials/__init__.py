"""Access of a hub's MultiKueue to its workers: minted, verified, renewed, revoked.

What stands on both sides is the only memory: every step is derived from it and may be repeated.
Tokens are in Secrets and in this process, and nowhere else: no bus, no log, no event.
"""
