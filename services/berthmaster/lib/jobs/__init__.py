"""The Kubernetes objects that a job becomes, and its logs, for services that make or read them.

May live here: the schema of pods that we make, the kinds of job objects (a file each in kinds/),
how pods of a gang start together and find each other, runtimes' templates, lines of logs with
their times. Must not: I/O, or calls of an API server.
"""
