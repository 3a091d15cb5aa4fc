"""All that knows the Kubernetes API: access, requests, watching, patches, events on objects.

May live here: whatever is the same for every resource and every service.
Must not: the bus, what an object means for a service, or a decision of any kind.
"""
