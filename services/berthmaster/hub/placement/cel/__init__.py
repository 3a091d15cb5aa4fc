"""The Common Expression Language, as far as Placements use it, evaluated by Google's CEL.

``question`` defines the input and the output of an evaluation. ``language`` answers a question in
this process. ``worker`` answers questions in a separate process, under limits of memory and CPU
time. ``client`` starts, calls and replaces the worker. Only ``language`` and ``worker`` load the
library.
"""
