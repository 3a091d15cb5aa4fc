"""Keeps the usage of ended jobs and the trends of the fleet, for reports and webhooks.

May live here: the store (SQLite or PostgreSQL), its input, and the reports. Must not: anything that
a decision depends on. The log and the archive are the truth, and this copy can be built again from
them.
"""
