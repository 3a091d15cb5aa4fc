"""The node agent: what each GPU of one machine does now, once per interval, as one message.

May live here: the sources (NVML, dcgm-exporter, emulated) and the judgement of a GPU's health.
Must not: scores or placements; telemetry is an observation and never truth.
"""
