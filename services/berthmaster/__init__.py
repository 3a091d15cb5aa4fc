"""Berthmaster places GPU jobs on Kubernetes clusters by what their GPUs do right now.

``control``, ``hub`` and ``worker`` hold the services by where they run, ``lib`` the packages that
they share. Services share messages and the bus, and import no other service.
"""
