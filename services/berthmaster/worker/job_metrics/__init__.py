"""Measures what the GPUs of each job do: telemetry and pods in, usage metrics of jobs out.

May live here: which pod has which GPU, the owners of a pod, the sums for a job, the annotation of a
Job. Must not: read GPUs (telemetry does).
"""
