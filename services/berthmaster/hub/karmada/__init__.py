"""Beside a Karmada control plane: holds ResourceBindings until the resolver places their jobs.

The service takes the bindings whose policy names Berthmaster as scheduler. Karmada's own scheduler
ignores those.
"""
