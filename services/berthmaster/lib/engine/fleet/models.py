"""Whether a GPU model that somebody asks for is the one that a node reports, however it is spelt.

Nodes say what was discovered there ("NVIDIA-A100-SXM4-80GB", "Tesla-T4"); people write what they
know it by: "A100", "a100 80GB", "nvidia-tesla-t4". Both sides are compared here and nowhere else.

Rules of this file:

- A name is its words, in small letters, in any order, between anything that is no letter or digit.
  Words for the maker and its families of products (nvidia, tesla, amd, instinct …) say nothing, and
  neither does how a GPU is handed out (shared, MIG and its profile). ``80G`` and ``80GiB`` are
  ``80gb``; ``sxm4`` is an ``sxm`` too.
- What is asked for must all be there, word by word: never a part of a word. A10 is no A100, T4 no
  T400, L4 no L40, and L40 no L40S.
- What a node's name says beyond that may only be how the same chip is built in: memory, form,
  cooling. Any other word ("Ada", "Ti", "SUPER") makes it another model, so "RTX 6000" is not
  "RTX 6000 Ada Generation".
- Equal names are one model, also where none of these rules understands them.
- ``=NAME`` is that name and no other, as a node selector means it: what the scheduler compares
  letter by letter must not be taken for more than it finds.
- Clouds' names of machines' accelerators mean what they stand for there.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

from berthmaster.lib.accelerators.labels import PRODUCT, model_label, without_handing_out
from berthmaster.lib.accelerators.table import NVIDIA, maker_of
from berthmaster.lib.messages.fleet import GpuDevice, NodeReport

EXACTLY: Final = "="
HOSTNAME: Final = "kubernetes.io/hostname"
_WORD: Final = re.compile(r"[a-z0-9]+")
_MEMORY: Final = re.compile(r"([0-9]{1,3})(?:g|gb|gib)\Z")
_SILENT: Final = frozenset(
    ("nvidia", "tesla", "quadro", "geforce", "amd", "instinct", "radeon", "gpu")
)
_SERIES: Final = frozenset(("rtx", "gtx"))  # left out as often as not: nobody mistakes a 4090
_BUILT_IN: Final = re.compile(
    r"(?:[0-9]{1,3}gb|sxm[0-9]?|pcie|oam|nvl|hbm[0-9]?e?|fhhl|dgxs|generation)\Z"
)
# Google's names of accelerators whose words mean something else, or more, than elsewhere.
_CLOUD: Final[Mapping[str, str]] = {
    "nvidia-tesla-a100": "a100 40gb",
    "nvidia-h100-mega-80gb": "h100 80gb",
    "nvidia-h200-141gb": "h200",
}


def resources_of(node: NodeReport) -> tuple[str, ...]:
    """Return the resource as which pods ask for each GPU of a node, if it can be had whole."""
    return tuple([gpu.resource or NVIDIA for gpu in node.gpus])


def _maker(gpu: GpuDevice) -> str:
    """Return the maker of a GPU; "" where neither its resource nor its driver says."""
    if gpu.claim is None:
        return maker_of(gpu.resource or NVIDIA)
    return maker_of(f"{gpu.claim.driver.removeprefix('gpu.')}/gpu")


@lru_cache(maxsize=8192)
def is_one_of(wanted: tuple[str, ...], model: str) -> bool:
    """Whether a node's model is one of those that are asked for."""
    return any(is_model(name, model) for name in wanted)


def is_model(wanted: str, model: str) -> bool:
    """Whether a node's model is what is asked for."""
    if wanted == model:
        return True
    if wanted.startswith(EXACTLY):
        return without_handing_out(wanted[1:]) == without_handing_out(model)
    asked, there = _words(_CLOUD.get(wanted.lower(), wanted)), _words(model)
    if not any(not _BUILT_IN.match(word) for word in asked - _SERIES):
        return False  # "80GB" or "SXM4" is no model
    known = there | {"sxm" for word in there if word.startswith("sxm")}
    return asked <= known and all(
        _BUILT_IN.match(word) or word in _SERIES for word in there - asked
    )


def _words(name: str) -> frozenset[str]:
    plain = without_handing_out(name.lower().replace(" ", "-"))
    words = (_MEMORY.sub(r"\1gb", word) for word in _WORD.findall(plain))
    return frozenset(word for word in words if word not in _SILENT)


def labels_of(
    reports: Iterable[NodeReport],
    wanted: tuple[str, ...],
    memory_mib: int = 0,
    resource: str = "",
) -> dict[str, list[str]]:
    """Labels of the nodes with GPUs that will do, as their models are named there: a node with one
    of them will do. What no node has is asked for by its own name. ``resource``: as which the GPUs
    are asked for; "" = as any."""
    found: dict[str, set[str]] = {}
    for report in reports:
        makers = {
            _maker(gpu)
            for gpu in report.gpus
            if (not wanted or is_one_of(wanted, gpu.model))
            and gpu.memory_mib >= memory_mib
            and resource in ("", gpu.resource or NVIDIA)
        }
        for maker in makers:
            key = model_label(report.labels, maker) or HOSTNAME
            found.setdefault(key, set()).add(report.labels.get(key, report.node))
    if not found and wanted:
        return {PRODUCT: sorted(name.removeprefix(EXACTLY) for name in wanted)}
    return {key: sorted(values) for key, values in sorted(found.items())}
