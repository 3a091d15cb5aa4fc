"""The Kubernetes API: access, requests, typed objects, mirrors, patches, Events, controller loop.

Allowed here: code that is the same for every resource and every service. Not allowed: the bus, the
meaning of an object for one service, decisions.
"""
