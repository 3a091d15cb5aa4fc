"""How answers look in a terminal: values in, something that rich can print out.

May live here: words, tables, colours. Every screen must be readable without colour, in 80 columns.
Must not: I/O of any kind, clocks (the time is handed in), questions to the bus.
"""
