"""Berthmaster places GPU jobs on clusters by what their GPUs do right now.

Services (telemetry, scorer, gateway, resolver, archivist, emulator) share the messages and the bus
and nothing else; the contracts in pyproject.toml hold them to it.
"""
