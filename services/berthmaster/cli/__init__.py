"""The command `berth`: what people type, and how answers look in a terminal.

May live here: commands, tables, progress.
Must not: rules that a program without a terminal would need too.
"""
