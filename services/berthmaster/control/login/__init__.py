"""Exchange an identity token of a trusted issuer for a NATS credential that lasts an hour.

The service signs with scoped keys. The server grants the rights in the key's template to a tenant
or to the agent of a cluster, in that account only.
"""
