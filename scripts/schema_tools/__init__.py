"""The contract for other languages, made from the messages, and a judge of how it may change.

May live here: reading types and comments, writing schemas, comparing two generations of them. Must
not: network, clocks, or anything that makes two runs on one tree differ.
"""
