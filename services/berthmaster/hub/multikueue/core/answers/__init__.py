"""Output for readers: events of the log, Kubernetes events, and answers to ``why``."""
