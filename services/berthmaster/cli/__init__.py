"""The command `berth`: one folder a noun, each with its commands and their screens.

Must not: rules that a program without a terminal needs too.
"""
