"""Logs of jobs as every side knows them: lines with their times, and how far they were read.

May live here: what agents, the gateway and the client must agree on. Must not: I/O.
"""
