"""Usage of ended jobs and trends of the fleet, for reports and webhooks.

This package has the store (SQLite or PostgreSQL), its input and the reports. No decision may depend
on this package. The log and the archive are the truth, and the store can be rebuilt from them.
"""
