"""The Common Expression Language, as far as Placements use it, evaluated by Google's CEL.

``question`` has what goes to an evaluation and what comes back. ``language`` answers a question in
this process. ``worker`` answers questions in a process of its own, under limits of memory and CPU
time, and ``client`` starts, asks and replaces that process. Only ``language`` and ``worker`` load
the library.
"""
