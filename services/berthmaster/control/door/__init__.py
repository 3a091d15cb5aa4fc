"""The agent API: the only service that agents of worker clusters speak to.

The door folds the log and mirrors the facts. It answers a cluster about that cluster alone, and
checks what an agent reports against the log before it stores that. Replicas need no agreement,
because the server compares the sequence that the check was made on.
"""
