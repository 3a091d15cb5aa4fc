"""What agents of worker clusters speak to: they have no right on any stream, the door has.

It folds the log and mirrors the facts, answers a cluster with what is that cluster's, and stores
what an agent says once that is checked against the log. Replicas need no agreement: what was
checked is what the server compares.
"""
