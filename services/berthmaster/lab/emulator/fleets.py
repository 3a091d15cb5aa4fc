"""Fleets of worker clusters: from a node list in openb's form, or generated in its shape.

**From nodes to clusters.** Nodes are grouped by GPU model, one cluster per model. With fewer
clusters than requested, the model with the largest clusters is split into one more. Its nodes are
dealt in turn, so that its clusters are equal in size and mix. With more clusters than requested,
the two smallest are joined. Example: the openb list with 8 clusters gives one cluster per model,
and two of G2.

**Scaling.** ``nodes`` keeps the mix: each shape (model, GPUs, CPU, memory) gets its share by
largest remainder, each model at least one node. A fleet can be larger than its list.

Pure except ``read_fleet``: text in, values out. Numbers of the built-in shape: Alibaba's
cluster-trace-gpu-v2023 (1,213 nodes, 6,212 GPUs), the data set of "Beware of Fragmentation"
(ATC'23). Its models G2 and G3 are anonymous, so their memory is an assumption.
"""

import csv
import io
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from berthmaster.lib.accelerators.table import PRODUCT
from berthmaster.lib.messages.fleet import Amounts

MODEL_LABEL: Final = "berth/gpu-model"
REGION_LABEL: Final = "topology.kubernetes.io/region"
OPENB_NODES: Final = "openb/openb_node_list_gpu_node.csv"
BUILTIN: Final = "builtin"
DEFAULT_CLUSTERS: Final = 8
COLUMNS: Final = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
T = TypeVar("T")


class NodeSpec(NamedTuple):
    """The hardware of one node."""

    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str

    @property
    def allocatable(self) -> Amounts:
        """Return the capacity for pods."""
        return Amounts(
            cpu_milli=self.cpu_milli, memory_mib=self.memory_mib, gpu_milli=1000 * self.gpus
        )

    @property
    def shape(self) -> tuple[str, int, int, int]:
        """Return the key of equal nodes."""
        return self.model, self.gpus, self.cpu_milli, self.memory_mib


class ClusterSpec(NamedTuple):
    name: str
    region: str
    nodes: tuple[NodeSpec, ...]

    @property
    def gpus(self) -> dict[str, int]:
        """Return the number of GPUs by model."""
        counts: dict[str, int] = {}
        for node in self.nodes:
            if node.gpus:
                counts[node.model] = counts.get(node.model, 0) + node.gpus
        return counts

    @property
    def labels(self) -> dict[str, str]:
        """Return the labels of the cluster, with GPU labels only if all nodes agree."""
        labels = {REGION_LABEL: self.region}
        models = list(self.gpus)
        if len(models) == 1:
            labels |= _model_labels(models[0])
        return labels

    def node_labels(self, node: NodeSpec) -> dict[str, str]:
        """Return the labels of a node, in the terms of GPU feature discovery."""
        labels = {"kubernetes.io/hostname": node.name, REGION_LABEL: self.region}
        if node.gpus:
            labels |= _model_labels(node.model)
            labels["nvidia.com/gpu.count"] = str(node.gpus)
            labels["nvidia.com/gpu.memory"] = str(gpu_memory_mib(node.model))
        return labels


class FleetError(ValueError):
    """The node list or the request is invalid. The text says what would be right."""


class _Gpu(NamedTuple):
    memory_mib: int
    product: str  # name in GPU feature discovery
    power_w: float  # board limit
    clock_mhz: int


_GPUS: Final[Mapping[str, _Gpu]] = {
    "A10": _Gpu(24_576, "NVIDIA-A10", 150, 1695),
    "G2": _Gpu(32_768, "G2", 250, 1500),
    "G3": _Gpu(81_920, "G3", 400, 1410),
    "P100": _Gpu(16_384, "Tesla-P100-PCIE-16GB", 250, 1328),
    "T4": _Gpu(16_384, "Tesla-T4", 70, 1590),
    "V100M16": _Gpu(16_384, "Tesla-V100-SXM2-16GB", 300, 1530),
    "V100M32": _Gpu(32_768, "Tesla-V100-SXM2-32GB", 300, 1530),
    "A100": _Gpu(81_920, "NVIDIA-A100-SXM4-80GB", 400, 1410),
    "H100": _Gpu(81_920, "NVIDIA-H100-80GB-HBM3", 700, 1980),
    "H200": _Gpu(144_384, "NVIDIA-H200", 700, 1980),
    "L4": _Gpu(24_576, "NVIDIA-L4", 72, 2040),
}
_OTHER_GPU: Final = _Gpu(16_384, "", 250, 1500)
_REGIONS: Final = ("eu-central", "us-east", "ap-northeast", "eu-north", "us-west", "ap-south")


class _Shape(NamedTuple):
    nodes: int
    model: str
    gpus: int
    cpu_milli: int
    memory_mib: int


# Nodes of each shape per 1,213: the published mix of cluster-trace-gpu-v2023.
_OPENB_SHAPES: Final = (
    _Shape(549, "G2", 8, 96_000, 393_216),
    _Shape(387, "T4", 2, 104_000, 524_288),
    _Shape(107, "P100", 2, 16_000, 122_880),
    _Shape(39, "G3", 8, 128_000, 786_432),
    _Shape(28, "V100M16", 4, 32_000, 131_072),
    _Shape(22, "P100", 2, 64_000, 262_144),
    _Shape(21, "V100M32", 8, 96_000, 786_432),
    _Shape(19, "V100M16", 1, 8_000, 32_768),
    _Shape(17, "T4", 4, 96_000, 393_216),
    _Shape(9, "V100M32", 4, 48_000, 376_832),
    _Shape(7, "V100M16", 8, 64_000, 262_144),
    _Shape(3, "P100", 1, 8_000, 61_440),
    _Shape(2, "P100", 2, 8_000, 61_440),
    _Shape(2, "A10", 1, 128_000, 1_048_576),
    _Shape(1, "V100M16", 8, 82_000, 344_064),
)


def gpu_memory_mib(model: str) -> int:
    """Return the memory of one GPU; a plausible number for an unknown model."""
    return _GPUS.get(model, _OTHER_GPU).memory_mib


def gpu_power_w(model: str) -> float:
    return _GPUS.get(model, _OTHER_GPU).power_w


def gpu_clock_mhz(model: str) -> int:
    return _GPUS.get(model, _OTHER_GPU).clock_mhz


def _model_labels(model: str) -> dict[str, str]:
    return {MODEL_LABEL: model, PRODUCT: _GPUS.get(model, _OTHER_GPU).product or model}


def parse_nodes(text: str) -> list[NodeSpec]:
    """Return the nodes of a list with openb's columns, in order. Raises FleetError."""
    rows = csv.DictReader(io.StringIO(text))
    missing = [column for column in COLUMNS if column not in (rows.fieldnames or ())]
    if missing:
        raise FleetError(f"the node list lacks {', '.join(missing)}; it needs {','.join(COLUMNS)}")
    nodes: list[NodeSpec] = []
    seen: set[str] = set()
    for number, row in enumerate(rows, 2):
        name = (row["sn"] or "").strip()
        if not name or name in seen:
            raise FleetError(f"line {number}: sn {name!r} is empty or there twice")
        seen.add(name)
        nodes.append(
            NodeSpec(
                name,
                _amount(row, "cpu_milli", number),
                _amount(row, "memory_mib", number),
                _amount(row, "gpu", number),
                (row["model"] or "").strip(),
            )
        )
        if nodes[-1].gpus and not nodes[-1].model:
            raise FleetError(f"line {number}: {name} has GPUs and no model")
    if not nodes:
        raise FleetError("the node list has no nodes")
    return nodes


def _amount(row: Mapping[str, str], column: str, number: int) -> int:
    text = (row[column] or "").strip()
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise FleetError(f"line {number}: {column} is {text!r}, not a whole number of at least 0")
    return value


def builtin_nodes(nodes: int = 1213) -> list[NodeSpec]:
    """Return the nodes of a fleet in the published shape."""
    counts = _apportion([shape.nodes for shape in _OPENB_SHAPES], nodes, _OPENB_SHAPES, _model_of)
    numbers: dict[str, int] = defaultdict(int)
    made: list[NodeSpec] = []
    for shape, count in zip(_OPENB_SHAPES, counts, strict=True):
        for _ in range(count):
            numbers[shape.model] += 1
            name = f"{shape.model.lower()}-{numbers[shape.model]:04}"
            made.append(NodeSpec(name, shape.cpu_milli, shape.memory_mib, shape.gpus, shape.model))
    return made


def _model_of(shape: _Shape) -> str:
    return shape.model


def scale(nodes: Sequence[NodeSpec], count: int) -> list[NodeSpec]:
    """Return ``count`` nodes in the mix of ``nodes``: evenly picked, or repeated under new
    names."""
    shapes: dict[tuple[str, int, int, int], list[NodeSpec]] = defaultdict(list)
    for node in nodes:
        shapes[node.shape].append(node)
    groups = list(shapes.values())
    counts = _apportion([len(g) for g in groups], count, groups, lambda group: group[0].model)
    picked: list[NodeSpec] = []
    for group, wanted in zip(groups, counts, strict=True):
        for index in range(wanted):
            if wanted <= len(group):
                picked.append(group[index * len(group) // wanted])
                continue
            turn, place = divmod(index, len(group))
            node = group[place]
            picked.append(node._replace(name=f"{node.name}-{turn + 1}") if turn else node)
    return picked


def _apportion(
    weights: Sequence[int], total: int, groups: Sequence[T], model: Callable[[T], str]
) -> list[int]:
    """Return shares of ``total`` by largest remainder, each model at least one while possible."""
    if total < 1:
        raise FleetError(f"nodes is {total}; a fleet has at least 1")
    whole = sum(weights)
    exact = [weight * total / whole for weight in weights]
    counts = [int(share) for share in exact]
    order = sorted(range(len(weights)), key=lambda i: (counts[i] - exact[i], i))
    for index in order[: total - sum(counts)]:
        counts[index] += 1
    for name in dict.fromkeys(map(model, groups)):
        members = [i for i, group in enumerate(groups) if model(group) == name]
        if any(counts[i] for i in members):
            continue
        richest = max(range(len(counts)), key=lambda i: (counts[i], -i))
        if counts[richest] > 1:
            counts[richest] -= 1
            counts[max(members, key=lambda i: weights[i])] += 1
    return counts


def group(nodes: Sequence[NodeSpec], clusters: int = DEFAULT_CLUSTERS) -> list[ClusterSpec]:
    """Return the nodes as clusters, by the rule in this module's docstring."""
    if not 1 <= clusters <= len(nodes):
        raise FleetError(f"clusters is {clusters}; {len(nodes)} nodes make 1 to {len(nodes)}")
    by_model: dict[str, list[NodeSpec]] = defaultdict(list)
    for node in nodes:
        by_model[node.model if node.gpus else "cpu"].append(node)
    parts = dict.fromkeys(by_model, 1)
    while sum(parts.values()) < clusters:
        largest = max(parts, key=lambda model: len(by_model[model]) / parts[model])
        parts[largest] += 1
    groups: list[tuple[str, list[NodeSpec]]] = []
    for model, count in parts.items():
        for part in range(count):
            name = f"{_plain(model)}-{chr(97 + part) if count <= 26 else part + 1}"
            groups.append((name if count > 1 else _plain(model), by_model[model][part::count]))
    while len(groups) > clusters:
        groups.sort(key=lambda g: len(g[1]), reverse=True)
        (second, more), (first, less) = groups.pop(), groups.pop()
        groups.append((f"{first}-{second}", [*less, *more]))
    groups.sort()
    return [
        ClusterSpec(name, _REGIONS[number % len(_REGIONS)], tuple(members))
        for number, (name, members) in enumerate(groups)
    ]


def _plain(model: str) -> str:
    """Return a model's name as part of a valid Kubernetes name."""
    plain = "".join(c if c.isascii() and c.isalnum() else "-" for c in model.lower())
    return plain.strip("-") or "other"


def fleet_from_text(
    text: str, *, clusters: int = DEFAULT_CLUSTERS, nodes: int | None = None
) -> list[ClusterSpec]:
    """Return the clusters of a node list, scaled to ``nodes`` if given."""
    listed = parse_nodes(text)
    return group(listed if nodes is None else scale(listed, nodes), clusters)


def builtin_fleet(
    *, clusters: int = DEFAULT_CLUSTERS, nodes: int | None = None
) -> list[ClusterSpec]:
    """Return clusters in the published shape, by default with 1,213 nodes."""
    return group(builtin_nodes() if nodes is None else builtin_nodes(nodes), clusters)


def read_fleet(
    source: str, *, clusters: int = DEFAULT_CLUSTERS, nodes: int | None = None
) -> list[ClusterSpec]:
    """Return the fleet of ``builtin`` or of a node list's path. Raises FleetError.

    The only function with I/O.
    """
    if source == BUILTIN:
        return builtin_fleet(clusters=clusters, nodes=nodes)
    try:
        text = Path(source).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise FleetError(f"cannot read the node list {source}: {error}") from error
    try:
        return fleet_from_text(text, clusters=clusters, nodes=nodes)
    except FleetError as error:
        raise FleetError(f"{source}: {error}") from error
