"""Beside a Karmada control plane: bindings of ours wait their turn among all jobs, and go where the
resolver says. Ours are those whose policy names us as its scheduler; Karmada's own leaves them be.
"""
