"""The command `berth`: one folder per noun, with its commands and their screens.

Does not belong here: rules that a program without a terminal needs too.
"""
