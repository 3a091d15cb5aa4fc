"""One cluster's GPUs as a table of small numbers, five for each GPU, to draw on a page. Pure.

A node's fact describes its GPUs and their pods. A node's telemetry describes their activity. Both
become one row per GPU: utilization, allocation, memory use, temperature and marks. The layout is
the order and size of the nodes, and changes seldom. Updates have the rows of changed nodes only.
"""

import base64
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from berthmaster.lib.engine.fleetview.rows import natural
from berthmaster.lib.messages.fleet import GpuDevice, NodeReport
from berthmaster.lib.messages.telemetry import GpuReading, NodeTelemetry

UNKNOWN: Final = 255  # not measured, never zero
BUSY, HELD, MEMORY, HEAT, MARKS = range(5)  # columns of a row
COLUMNS: Final = 5
# Marks. The lowest two bits are the health: 0 ok, 1 degraded, 2 lost or not offered.
DEGRADED, LOST, MIG, PARTS, FOREIGN, CLOSED, SILENT = 1, 2, 4, 8, 16, 32, 64
NOT_READY: Final = 128
STALE_INTERVALS: Final = 3.0  # without telemetry, after which the last sample is ignored
STALE_LEAST_S: Final = 5.0
HISTORY: Final = 300  # seconds of each GPU's utilization

_HEALTH: Final = {"ok": 0, "degraded": DEGRADED, "lost": LOST}


class GpuName(NamedTuple):
    node: str
    number: int


class Node:
    __slots__ = ("closed", "first", "heard_s", "number", "rank", "readings", "report", "silent_s")

    def __init__(self, report: NodeReport) -> None:
        self.report = report
        self.readings: dict[int, GpuReading] = {}
        self.heard_s = 0.0  # arrival of the last sample, by our clock. 0: no live sample
        self.silent_s = 0.0  # time after which the sample is ignored
        self.closed = False  # cordoned by an operator
        self.number = -1  # in the layout
        self.first = 0  # row of its first GPU
        self.rank: dict[int, int] = {}  # a GPU's index -> its position among the node's rows


class Grid:
    def __init__(self, cluster: str) -> None:
        self.cluster = cluster
        self.layout = 0  # number of the current layout
        self.nodes: dict[str, Node] = {}
        self.rows: NDArray[np.uint8] = np.zeros((0, COLUMNS), np.uint8)
        self.history: NDArray[np.uint8] = np.zeros((0, HISTORY), np.uint8)
        self.at = 0  # next column of the history
        self._node_of: NDArray[np.int32] = np.zeros(0, np.int32)
        self._versions: NDArray[np.int64] = np.zeros(0, np.int64)
        self._sizes: NDArray[np.int32] = np.zeros(0, np.int32)
        self._laid_at = 0  # version of the last layout change
        self._dirty = False  # whether a new layout is due

    @property
    def gpus(self) -> int:
        return len(self.rows)

    def take_report(self, report: NodeReport, version: int) -> None:
        """Take a node's report."""
        node = self.nodes.get(report.node)
        if node is None:
            node = self.nodes[report.node] = Node(report)
            self._dirty = True
        elif _devices(node.report) != _devices(report):
            self._dirty = True
        node.report = report
        if not self._dirty:
            self._write(node, version)

    def forget(self, name: str) -> None:
        if self.nodes.pop(name, None) is not None:
            self._dirty = True

    def take_reading(self, reading: NodeTelemetry, now_s: float, version: int) -> bool:
        """Take a node's telemetry. Return whether the node is known."""
        node = self.nodes.get(reading.node)
        if node is None:
            return False
        node.readings = {gpu.index: gpu for gpu in reading.gpus}
        node.heard_s = now_s
        node.silent_s = now_s + max(STALE_LEAST_S, STALE_INTERVALS * reading.interval_s)
        if not self._dirty:
            self._write(node, version)
        return True

    def close(self, names: frozenset[str], version: int) -> None:
        """Set the nodes cordoned by operators, all of them."""
        for name, node in self.nodes.items():
            if node.closed != (name in names):
                node.closed = name in names
                if not self._dirty:
                    self._write(node, version)

    def age(self, now_s: float, version: int) -> bool:
        """Drop stale samples. Return whether any was dropped."""
        changed = False
        for node in self.nodes.values():
            if node.heard_s and now_s > node.silent_s:
                node.heard_s, node.readings = 0.0, {}
                changed = True
                if not self._dirty:
                    self._write(node, version)
        return changed

    def remember(self) -> None:
        """Add one second to the history."""
        if len(self.history):
            self.history[:, self.at] = self.rows[:, BUSY]
        self.at = (self.at + 1) % HISTORY

    def lay_out(self, version: int) -> bool:
        """Make a new layout if nodes were added, removed or changed. Return whether it was made."""
        if not self._dirty:
            return False
        self._dirty = False
        self.layout += 1
        self._laid_at = version
        past = {
            GpuName(name, index): self.history[node.first + rank]
            for name, node in self.nodes.items()
            if node.number >= 0
            for index, rank in node.rank.items()
            if node.first + rank < len(self.history)
        }
        names = sorted((n for n, node in self.nodes.items() if node.report.gpus), key=natural)
        total = sum(len(self.nodes[name].report.gpus) for name in names)
        self.rows = np.full((total, COLUMNS), UNKNOWN, np.uint8)
        history = np.full((total, HISTORY), UNKNOWN, np.uint8)
        self._node_of = np.zeros(total, np.int32)
        self._sizes = np.zeros(len(names), np.int32)
        self._versions = np.full(len(names), version, np.int64)
        for node in self.nodes.values():
            node.number = -1
        first = 0
        for number, name in enumerate(names):
            node = self.nodes[name]
            node.number, node.first = number, first
            gpus = node.report.gpus
            node.rank = {gpu.index: rank for rank, gpu in enumerate(gpus)}
            self._sizes[number] = len(gpus)
            self._node_of[first : first + len(gpus)] = number
            for index, rank in node.rank.items():
                if (old := past.get(GpuName(name, index))) is not None:
                    history[first + rank] = old
            self._write(node, version)
            first += len(gpus)
        self.history = history
        return True

    def layout_document(self) -> dict[str, Any]:
        """Return the nodes in order, to draw them."""
        laid = sorted(
            (node for node in self.nodes.values() if node.number >= 0), key=lambda each: each.number
        )
        models: dict[str, int] = {}
        nodes = []
        for node in laid:
            gpus = node.report.gpus
            model = models.setdefault(gpus[0].model, len(models))
            nodes.append([node.report.node, len(gpus), model])
        return {"layout": self.layout, "nodes": nodes, "models": list(models)}

    def changes(self, since: int) -> dict[str, Any] | None:
        """Return the rows of nodes that changed after a version, or None."""
        if not len(self._versions):
            return None
        whole = self._laid_at > since
        if whole:
            return {"layout": self.layout, "rows": _text(self.rows)}
        changed = self._versions > since
        if not changed.any():
            return None
        numbers = np.flatnonzero(changed).astype("<u4")
        if 2 * len(numbers) > len(changed):  # shorter without the nodes' numbers
            return {"layout": self.layout, "rows": _text(self.rows)}
        rows = self.rows[changed[self._node_of]]
        return {"layout": self.layout, "nodes": _text(numbers), "rows": _text(rows)}

    def place_of(self, name: str, index: int) -> int | None:
        """Return the row of a GPU, or None."""
        node = self.nodes.get(name)
        if node is None or node.number < 0 or index not in node.rank:
            return None
        return node.first + node.rank[index]

    def _write(self, node: Node, version: int) -> None:
        if node.number < 0:
            return
        report = node.report
        held, parts = held_milli(report)
        common = CLOSED if node.closed or not report.schedulable else 0
        common |= 0 if report.ready else NOT_READY
        common |= 0 if node.heard_s else SILENT
        if any(share.kind != "mig" for share in report.shares):
            common |= PARTS
        rows = [
            _row(gpu, node.readings.get(gpu.index), held[gpu.index], gpu.index in parts, common)
            for gpu in report.gpus
        ]
        self.rows[node.first : node.first + len(rows)] = rows
        self._versions[node.number] = version


def _devices(report: NodeReport) -> list[tuple[int, str]]:
    return [(gpu.index, gpu.model) for gpu in report.gpus]


def held_milli(report: NodeReport) -> tuple[dict[int, int], set[int]]:
    """Return the allocated amount of each GPU, and the GPUs with a fraction allocated."""
    held = {gpu.index: gpu.foreign_milli for gpu in report.gpus}
    parts: set[int] = set()
    for pod in report.pods:
        for index in pod.gpus:
            if index in held:
                held[index] += pod.gpu_milli
                if pod.gpu_milli < 1000:
                    parts.add(index)
    return held, parts


def _row(
    gpu: GpuDevice, reading: GpuReading | None, held: int, in_parts: bool, common: int
) -> tuple[int, int, int, int, int]:
    marks = common | (PARTS if in_parts else 0) | (FOREIGN if gpu.foreign_milli else 0)
    busy = memory = heat = UNKNOWN
    if reading is not None:
        marks |= _HEALTH[reading.health] | (MIG if reading.mig else 0)
        busy = _small(reading.utilization_percent)
        heat = _small(reading.temperature_c)
        total, used = reading.memory_total_mib, reading.memory_used_mib
        memory = _small(100 * used / total) if total and used is not None else UNKNOWN
    if not gpu.healthy:
        marks = (marks & ~DEGRADED) | LOST
    return busy, min(200, round(held / 10)), memory, heat, marks


def _small(value: float | None) -> int:
    """Return the value as one byte below UNKNOWN."""
    return UNKNOWN if value is None else min(254, max(0, round(value)))


def _text(numbers: NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(numbers).tobytes()).decode()
