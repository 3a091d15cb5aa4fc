"""From facts and telemetry to scores per node and cluster, never for ever stale.

May live here: score formulas, dead band, ageing. Must not: placements, or another service.
"""
