"""The log of workloads: guarded appends, commits, reading stories, and noticing that it is damaged.

May live here: how events are stored and read, what is remembered of a log and how it is compared.
Must not: any repair (cli/recover), or what an event means for one service.
"""
