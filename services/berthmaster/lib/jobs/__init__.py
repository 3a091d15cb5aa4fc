"""The Kubernetes objects that a job becomes, and its logs, for services that make or read them.

May live here: the pod spec, how the pods of a gang find each other, templates of runtimes, log
lines with their times. Must not: I/O, or calls of an API server.
"""
