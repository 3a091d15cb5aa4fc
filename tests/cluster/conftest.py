"""The planes of berthmaster/lab/controlplane, which run once for the whole tier."""

from tests.controlplane.fixtures import _running, namespace, planes, programs

__all__ = ["_running", "namespace", "planes", "programs"]
