"""What ended jobs used, kept for reports, and how the fleet's figures went.

May live here: the store (SQLite or PostgreSQL), what fills it, and the answers made of it.
Must not: anything that other services decide by. The log and the archive are the truth; this is a
copy of theirs that can be made again, and it is never asked before a job is placed.
"""
