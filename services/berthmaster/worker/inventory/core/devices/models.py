"""Model names of GPUs in facts, as GPU feature discovery writes them. Pure.

Facts use the names of `kubectl get nodes -L nvidia.com/gpu.product` ("Tesla-T4",
"NVIDIA-A100-SXM4-80GB"). lib/engine/fleet/gpus.py handles users' spellings. Suffixes for sharing
are removed: "-SHARED" and "-MIG-1g.5gb". Without discovery a cloud's labels are translated
(lib/accelerators/table.py). The report has the raw labels too.
"""

import re
from collections.abc import Mapping
from typing import Final

from berthmaster.lib.accelerators.table import (
    PRODUCT,
    Board,
    board_of_amd,
    board_of_cloud,
    without_handing_out,
)

_MEMORY: Final = re.compile(r"(?<![0-9])([0-9]{1,3})GB")

_NO_LABEL: Final = re.compile(r"[^-A-Za-z0-9_.+/:()@=,#]")

UNKNOWN: Final = "unknown"


def model_of(labels: Mapping[str, str], *, amd: bool = False) -> str:
    product = "" if amd else _plain(labels.get(PRODUCT, ""))
    return product or _plain((_board(labels, amd=amd) or Board(UNKNOWN)).product) or UNKNOWN


def memory_of(labels: Mapping[str, str], *, amd: bool = False) -> int:
    """Return the memory of a whole GPU in MiB, from the model's name; 0 = not in the name."""
    product = "" if amd else labels.get(PRODUCT, "")
    if product:
        found = _MEMORY.search(product)
        return int(found[1]) * 1024 if found else 0
    board = _board(labels, amd=amd)
    return board.memory_mib if board is not None else 0


def _board(labels: Mapping[str, str], *, amd: bool) -> Board | None:
    return board_of_amd(labels) if amd else board_of_cloud(labels, "nvidia")


def named(product: str) -> str:
    """Return a device's own model name ("NVIDIA A100-SXM4-40GB") as a discovery label, at most 63
    characters.
    """
    return _plain(product) or UNKNOWN


def _plain(product: str) -> str:
    return without_handing_out(_NO_LABEL.sub("", "-".join(product.split()))[:63])
