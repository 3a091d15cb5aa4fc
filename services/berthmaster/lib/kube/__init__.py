"""The Kubernetes API: access, requests, typed objects, mirrors, patches, Events, controller loop.

May live here: what is the same for every resource and every service. Must not: the bus, what an
object means for one service, or a decision.
"""
