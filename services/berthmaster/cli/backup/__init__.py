"""Copies of what cannot be made again, and a bus made from one.

May live here: the files of a backup, reading streams into them, restoring streams from them.
Must not: anything of one service, and any judgement of what the messages say.
"""
