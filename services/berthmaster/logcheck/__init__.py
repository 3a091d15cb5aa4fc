"""Notices that a log is not the one that a service has read or written.

May live here: what is remembered of a log, where that is kept, and how it is compared.
Must not: any repair, and anything of one service.
"""
