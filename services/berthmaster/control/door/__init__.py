"""The agent API: the only service that agents of worker clusters speak to.

The door folds the log and mirrors the facts. A cluster gets data about itself only. The door checks
an agent's report against the log before storing the report. Replicas need no agreement, because the
NATS server compares the sequence behind the check.
"""
