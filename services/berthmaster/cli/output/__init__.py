"""How values look in a terminal: values in, objects that rich can print out.

May live here: tables, units, colours. Every screen is readable without colour in 80 columns. Must
not: I/O, clocks (the caller passes the time), requests to the bus.
"""
