"""The planes of berthmaster/lab/controlplane, which are themselves what is tested here."""

from tests.controlplane.fixtures import _running, namespace, planes, programs

__all__ = ["_running", "namespace", "planes", "programs"]
