"""The Kubernetes objects of a job, and its logs, for services that create or read them.

Allowed here: the schema of Berthmaster's pods, the kinds of job objects (a file each in kinds/),
gang start and rendezvous of pods, runtimes' templates, log lines with times. Not allowed: I/O, or
calls of an API server.
"""
