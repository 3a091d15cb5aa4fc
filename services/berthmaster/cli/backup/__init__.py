"""`berth backup`: copies of the streams that cannot be built again, and a bus made from a copy.

May live here: the files of a backup, reading streams into them and restoring streams from them.
Must not: judge what the messages mean.
"""
