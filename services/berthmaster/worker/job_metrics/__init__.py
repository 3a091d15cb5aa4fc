"""What the GPUs of each job in a worker cluster do: telemetry and pods in, figures of jobs out, to
the bus and onto the Jobs.

May live here: whose pods are whose, owners up to the top, what is written on a Job. Must not: the
reading of GPUs (telemetry), what a reading means for whom (jobfigures).
"""
