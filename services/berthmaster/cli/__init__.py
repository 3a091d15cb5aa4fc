"""The command `berth`: one folder per noun, with its commands and their screens.

Must not: rules that a program without a terminal needs too.
"""
