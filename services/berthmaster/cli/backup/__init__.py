"""`berth backup`: copies of the streams that no service can rebuild, and a restored bus.

Belongs here: the files of a backup, reading streams into them and restoring streams from them. Not
here: the meaning of the messages.
"""
