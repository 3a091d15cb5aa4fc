"""What the metrics of a job say: which there are, their spread, what bounds the job, its stage.

May live here: pure functions over metrics of jobs that an agent and a service beside NATS share.
Must not: read metrics, and keep profiles (control/usage does).
"""
