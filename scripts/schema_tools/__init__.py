"""The contract for other languages, made from the messages.

May live here: reading types and comments, and writing schemas. Must not: network, clocks, or
anything that makes two runs on one tree differ.
"""
