"""The node agent: one message an interval with what each GPU of the machine does now.

May live here: sources (NVML, dcgm-exporter, emulated) and the health of a GPU. Must not: scores or
placements. Telemetry is an observation and never truth.
"""
