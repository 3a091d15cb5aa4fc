"""The store: what is kept of ended jobs and trends, in SQLite or PostgreSQL, by the same SQL.

May live here: tables, what is written together, what is read for a report.
Must not: what a report means to people, and anything of NATS.
"""
