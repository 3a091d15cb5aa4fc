"""The store of ended jobs and trends, in SQLite or PostgreSQL, by the same SQL.

This package has the tables, the transactions and the queries of reports. The meaning of a report
for users, and everything about NATS, belongs elsewhere.
"""
