"""Decides without I/O."""
