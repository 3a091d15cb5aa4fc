"""The form of values in a terminal: from values to objects that rich can print.

Belongs here: tables, units, colours. Every screen is readable without colour in 80 columns. Not
here: I/O, clocks (the caller passes the time), requests to the bus.
"""
