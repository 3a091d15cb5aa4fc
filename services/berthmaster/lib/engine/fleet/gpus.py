"""GPUs of a node: whether their model is the requested one, and which of them belong together.

**Models.** Nodes report discovered names ("NVIDIA-A100-SXM4-80GB", "Tesla-T4"). Users write "A100",
"a100 80GB" or "nvidia-tesla-t4". All comparisons are here.

Rules of this file:

- A name is a set of lower-case words, split at other characters than letters and digits. Words for
  the vendor and product family (nvidia, tesla, amd, instinct …) and for sharing (shared, MIG
  profiles) are ignored. ``80G`` and ``80GiB`` mean ``80gb``, and ``sxm4`` is also ``sxm``.
- Every requested word must be present as a whole word. A10 is not A100, T4 not T400, L4 not L40,
  and L40 not L40S.
- Additional words in the node's name may only describe memory, form factor or cooling. Other words
  ("Ada", "Ti", "SUPER") make another model: "RTX 6000" is not "RTX 6000 Ada Generation".
- Equal names always match.
- ``=NAME`` matches exactly, like a node selector, because the scheduler compares letter by letter.
- Clouds' names of accelerators are translated.

**Links.** Domains of GPUs on one node: linked by NVLink, or on one NUMA node.

Example: a node has GPUs 0 to 3 on NUMA node 0 and 4 to 7 on NUMA node 1. GPU 1 is taken. A pod with
2 GPUs gets 0 and 2, which keeps the other domain whole. A pod that requires a domain and needs 5
GPUs fits nowhere.

Rules of this file:

- A GPU without reported links belongs to no domain.
- A domain is an NVLink domain, or a NUMA node if the node reports no NVLink.
- A pod with several GPUs gets one NVLink domain and one NUMA node if possible, else one of either.
  Of several choices, the domain with the fewest free GPUs is used, which keeps larger domains
  whole.
- A pod that requires a domain gets nothing else. Other pods mix as few domains as possible.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from berthmaster.lib.accelerators.table import (
    NVIDIA,
    PRODUCT,
    maker_of,
    model_label,
    without_handing_out,
)
from berthmaster.lib.messages.fleet import GpuDevice, NodeReport

EXACTLY: Final = "="
HOSTNAME: Final = "kubernetes.io/hostname"
_WORD: Final = re.compile(r"[a-z0-9]+")
_MEMORY: Final = re.compile(r"([0-9]{1,3})(?:g|gb|gib)\Z")
_SILENT: Final = frozenset(
    ("nvidia", "tesla", "quadro", "geforce", "amd", "instinct", "radeon", "gpu")
)
_SERIES: Final = frozenset(("rtx", "gtx"))  # often omitted; a 4090 is unambiguous without
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
    """Return the extended resource of each GPU of a node."""
    return tuple([gpu.resource or NVIDIA for gpu in node.gpus])


def _maker(gpu: GpuDevice) -> str:
    """Return the vendor of a GPU; "" if neither its resource nor its driver tells."""
    if gpu.claim is None:
        return maker_of(gpu.resource or NVIDIA)
    return maker_of(f"{gpu.claim.driver.removeprefix('gpu.')}/gpu")


@lru_cache(maxsize=8192)
def is_one_of(wanted: tuple[str, ...], model: str) -> bool:
    return any(is_model(name, model) for name in wanted)


def is_model(wanted: str, model: str) -> bool:
    """Return whether a node's model matches the requested name."""
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
    """Return label values of nodes with matching GPUs, as the nodes name their models.

    A requested model without a node keeps its own name. ``resource``: extended resource of the
    GPUs; "" = any.
    """
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


UNKNOWN: Final = -1

Links = tuple[tuple[int, int], ...]  # of each GPU: NVLink domain, NUMA node; () = nothing is told
Group = tuple[int, ...]  # positions of GPUs


class Levels(NamedTuple):
    """GPUs of a node grouped by common domains."""

    domains: tuple[Group, ...]
    tightest_first: tuple[tuple[Group, ...], ...]  # groups of each level


def links_of(gpus: Sequence[GpuDevice]) -> Links:
    for gpu in gpus:
        if gpu.nvlink_domain is not None or gpu.numa_node is not None:
            return tuple((_known(one.nvlink_domain), _known(one.numa_node)) for one in gpus)
    return ()


def _known(number: int | None) -> int:
    return UNKNOWN if number is None else number


@lru_cache(maxsize=1024)
def levels_of(links: Links) -> Levels:
    """Return the groups of a layout of GPUs. Computed once per layout."""
    both = _groups([None if UNKNOWN in link else link for link in links])
    nvlink = _groups([None if link[0] == UNKNOWN else link[0] for link in links])
    numa = _groups([None if link[1] == UNKNOWN else link[1] for link in links])
    return Levels(nvlink or numa, tuple(level for level in (both, nvlink, numa) if level))


def _groups(keys: Sequence[object]) -> tuple[Group, ...]:
    found: dict[object, list[int]] = {}
    for position, key in enumerate(keys):
        if key is not None:
            found.setdefault(key, []).append(position)
    return tuple(tuple(group) for group in found.values())


def domain_numbers(links: Links, width: int) -> list[int]:
    """Return the domain number of each position; UNKNOWN without one."""
    numbers = [UNKNOWN] * width
    for number, group in enumerate(levels_of(links).domains):
        for position in group:
            numbers[position] = number
    return numbers


def pick(links: Links, free: Sequence[int], count: int, *, required: bool) -> list[int]:
    """So many of the free positions, in order; none where a domain is required and has too few."""
    domains, levels = levels_of(links)
    there = set(free)
    for level in levels:
        best: list[int] = []
        for group in level:
            found = [position for position in group if position in there]
            if len(found) < count or (best and len(found) >= len(best)):
                continue
            if not required or _within(found[:count], domains):
                best = found
        if best:
            return best[:count]
    if required:
        return []
    # No domain is large enough: use the largest first, to mix few.
    size = dict.fromkeys(free, 0)
    first = dict.fromkeys(free, len(links))
    for group in domains:
        found = [position for position in group if position in there]
        for position in found:
            size[position], first[position] = len(found), found[0]
    order = sorted(free, key=lambda position: (-size[position], first[position], position))
    return sorted(order[:count])


def _within(positions: Sequence[int], domains: Sequence[Group]) -> bool:
    return any(positions[0] in group and set(positions) <= set(group) for group in domains)
