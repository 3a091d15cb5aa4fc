"""The Kubernetes objects that a job becomes, and its logs, for every service that makes or reads
them.

May live here: the schema of pods that we make, how pods of a gang find each other, runtimes'
templates, lines of logs with their times. Must not: I/O, or calls of an API server.
"""
