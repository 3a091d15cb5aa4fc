"""Exchanges an identity token of a trusted issuer for a NATS credential that lasts an hour.

The service signs with scoped keys: the server grants what the template of the key allows to a
tenant or to the agent of a cluster, in that account alone.
"""
