"""What the resolver knows: the fold of its messages, and beside it what is derived for speed.

May live here: Knowledge and Derived, what is expected of jobs, what a snapshot keeps.
Must not: deciding; nothing here is changed by anything but a message.
"""
