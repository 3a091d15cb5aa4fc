"""Limits of the labels and taints that a fact holds of a node or a cluster. Pure."""

from collections.abc import Collection, Mapping
from typing import Final

MAX_LABELS: Final = 64
MAX_LABEL_CHARS: Final = 8192
MAX_TAINTS: Final = 64
_NOISE: Final = (
    "beta.kubernetes.io/",
    "failure-domain.beta.kubernetes.io/",
    "feature.node.kubernetes.io/",
    "nvidia.com/cuda.",
    "nvidia.com/gfd.",
    "nvidia.com/gpu.deploy.",
    "nvidia.com/gpu-driver-upgrade",
    "nvidia.com/mig.config",
    "nvidia.com/vgpu.",
)
_FIRST: Final = (
    "kubernetes.io/",
    "topology.kubernetes.io/",
    "node.kubernetes.io/",
    "nvidia.com/",
    "amd.com/",
    "cloud.google.com/",
    "berthmaster.io/",
)


def bounded_labels(
    labels: Mapping[str, str], first: Collection[str] = ()
) -> tuple[dict[str, str], int]:
    """Return the labels to keep, ``first`` before others, and the number of labels dropped."""
    useful = [key for key in labels if key in first or not key.startswith(_NOISE)]
    size = sum(len(key) + len(labels[key]) for key in useful)
    if len(useful) <= MAX_LABELS and size <= MAX_LABEL_CHARS:
        return {key: labels[key] for key in sorted(useful)}, 0
    kept: list[str] = []
    size = 0
    for key in sorted(useful, key=lambda key: (key not in first, not key.startswith(_FIRST), key)):
        size += len(key) + len(labels[key])
        if len(kept) == MAX_LABELS or size > MAX_LABEL_CHARS:
            break
        kept.append(key)
    return {key: labels[key] for key in sorted(kept)}, len(useful) - len(kept)
