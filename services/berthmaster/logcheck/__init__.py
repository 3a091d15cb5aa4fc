"""Whether the logs are what they were: how far they went and what they held is remembered where
they are not, and held against what the streams show.

May live here: the digest of a log, what is remembered of it and where, what is missing and why.
Must not: any repair, and anything of one service.
"""
