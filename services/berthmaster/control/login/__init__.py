"""Lets in who has no credentials of the bus, but a token of somebody whom the mapping trusts.

It signs with keys that are scoped: whatever it signs, the server grants what the key's template
says, which is what a tenant or a cluster's agent may do, in that account and no other.
"""
