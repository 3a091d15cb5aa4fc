"""Free capacity of the fleet, in arrays (arrays.py) updated in place by facts and placements.

Free = allocatable - unmanaged - live placements, per node and per GPU. Live placements come from
the log, so a late report neither frees nor promises a GPU. Nodes are ordered by cluster and name,
whatever the order of reports, so decisions depend on the facts alone.

Data derived from single nodes follows ``touched``, the log of changed slots.

**Overlay.** A draft of a decision or a question charges the fleet through an overlay, each charge
under a name. At the end of the ``with`` block all remaining charges are reverted, also after an
exception. The fleet never keeps capacity without a holder.
"""

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from types import TracebackType
from typing import Final, NamedTuple

from berthmaster.lib.engine.fleet.arrays import ABSENT, Arrays, Touched
from berthmaster.lib.engine.fleet.gpus import Links, links_of, resources_of
from berthmaster.lib.engine.fleet.pieces import Pieces, Tpus, foreign_pieces, pieces_on, tpus_on
from berthmaster.lib.engine.fleet.shares import Part, charged_milli, counted, enough
from berthmaster.lib.lifecycle.workload import Key
from berthmaster.lib.messages.fleet import NodeReport, Share, Taint
from berthmaster.lib.messages.workload import WHOLE_MILLI

WHOLE: Final = WHOLE_MILLI

NodeName = tuple[str, str]  # cluster, node


class Holding(NamedTuple):
    """Capacity of one pod on one node."""

    cluster: str
    node: str
    cpu_milli: int
    memory_mib: int
    gpu_milli: int  # of each GPU named
    gpus: tuple[int, ...]
    gpu_memory_mib: int = 0  # of a part of a GPU: at least so much comes with it
    mig_profile: str = ""
    pieces: Pieces = ()  # TPUs and other extended resources
    isolation: str = ""  # minimum isolation of a GPU fraction
    as_charged: bool = False  # True: gpu_milli is the charge, whatever fractions the node offers


class NodeKind(NamedTuple):
    """Properties read by filters besides labels, shared by many nodes."""

    gpus: tuple[tuple[str, int], ...]  # model and MiB of each GPU, by position
    taints: tuple[Taint, ...]
    fractions: bool = True  # hands out parts of GPUs
    shares: tuple[Share, ...] = ()  # as these; empty = in any size
    links: Links = ()  # NVLink and NUMA domains of the GPUs
    resources: tuple[str, ...] = ()  # extended resource of each whole GPU, by position
    pieces: Pieces = ()  # TPUs and other extended resources, taken or not
    tpus: Tpus | None = None
    indices: tuple[int, ...] = ()  # of the GPUs, by position
    parts_only: tuple[int, ...] = ()  # positions of GPUs never allocated whole


class _Used:
    """Capacity of live placements on one node."""

    __slots__ = (
        "changes",
        "cpu_milli",
        "gpu",
        "holders",
        "memory_mib",
        "parts",
        "pieces",
        "slot",
    )

    def __init__(self, slot: int) -> None:
        self.slot = slot  # slot of the node; -1 = never reported
        self.cpu_milli = 0
        self.memory_mib = 0
        self.gpu: dict[int, int] = {}
        self.parts: dict[tuple[int, Part], int] = {}  # GPU, as asked for -> how many; no zeros
        self.pieces: dict[str, int] = {}
        self.holders: dict[Key, None] = {}  # workloads with a live placement on the node
        self.changes = 0  # rises with each change of holders or of the node's report


class Fleet:
    """Facts and live placements, and the arrays derived from both."""

    def __init__(self) -> None:
        self._reports: dict[NodeName, NodeReport] = {}
        self._used: dict[NodeName, _Used] = {}
        self._holdings: dict[Key, tuple[Holding, ...]] = {}
        self._cordoned: set[NodeName] = set()
        self._stale_order = True
        self.layout = 0  # rises when nodes are added, removed or changed
        self.clusters: list[str] = []
        self.names: list[NodeName] = []
        self.kinds: list[NodeKind] = []
        self._slots: dict[NodeName, int] = {}
        self.arrays = Arrays()
        self.touched = Touched()
        self._spans: list[tuple[int, int]] = []
        self.kinds_in: list[frozenset[int]] = []  # node kinds of each cluster
        self.columns_only: list[bool] = []  # True for clusters of plain nodes with equal GPUs
        self._plain: list[bool] = []  # GPU i stands in column i, and no part costs more than itself

    # Facts

    def put_node(self, report: NodeReport) -> bool:
        """Take over a node's report. Whether something may fit now that did not before."""
        name = (report.cluster, report.node)
        before = self._reports.get(name)
        self._reports[name] = report
        if (used := self._used.get(name)) is not None:
            used.changes += 1
        if before is None or _shape(before) != _shape(report):
            self._stale_order = True
            return True
        if self._stale_order:
            return True
        slot, arrays = self._slots[name], self.arrays
        free_before = (
            arrays.cpu[slot],
            arrays.memory[slot],
            arrays.gpu[slot].copy(),
            arrays.open[slot],
        )
        left_before = [pieces[slot] for pieces in arrays.pieces.values()]
        self._fill(slot)
        return bool(
            arrays.cpu[slot] > free_before[0]
            or arrays.memory[slot] > free_before[1]
            or (arrays.gpu[slot] > free_before[2]).any()
            or arrays.open[slot] > free_before[3]
            or any(
                pieces[slot] > before
                for pieces, before in zip(arrays.pieces.values(), left_before, strict=True)
            )
        )

    def drop_node(self, cluster: str, node: str) -> None:
        """Remove a node. Its placements stay held until their end."""
        if self._reports.pop((cluster, node), None) is not None:
            self._stale_order = True

    def node(self, cluster: str, node: str) -> NodeReport | None:
        """The node's last report."""
        return self._reports.get((cluster, node))

    def slot(self, cluster: str, node: str) -> int | None:
        """The node's place in the arrays."""
        self.arrange()
        return self._slots.get((cluster, node))

    def reports(self) -> Iterable[NodeReport]:
        """All nodes' last reports, in the order of the arrays."""
        self.arrange()
        return (self._reports[name] for name in self.names)

    def report_at(self, slot: int) -> NodeReport:
        return self._reports[self.names[slot]]

    def set_cordon(self, cluster: str, node: str, cordoned: bool) -> bool:
        """Close or open a node. Whether something may fit now that did not before."""
        name = (cluster, node)
        if cordoned == (name in self._cordoned):
            return False
        (self._cordoned.add if cordoned else self._cordoned.discard)(name)
        if not self._stale_order and name in self._slots:
            self._fill(self._slots[name])
        return not cordoned

    # Placements

    def hold(self, key: Key, holdings: Sequence[Holding]) -> None:
        """Hold the capacity of a placement, in place of an earlier holding of the workload."""
        self.release(key)
        self._holdings[key] = tuple(holdings)
        self.charge(holdings, +1)
        for held in holdings:
            used = self._used[held[:2]]
            used.holders[key] = None
            used.changes += 1

    def release(self, key: Key) -> bool:
        """A placement's room is free again. Whether there was any."""
        holdings = self._holdings.pop(key, None)
        if holdings is None:
            return False
        self.charge(holdings, -1)
        for held in holdings:
            used = self._used[held[:2]]
            used.holders.pop(key, None)
            used.changes += 1
        return True

    def holdings(self, key: Key) -> tuple[Holding, ...]:
        """Return the holdings of the workload's live placement."""
        return self._holdings.get(key, ())

    def charged_milli(self, held: Holding, gpu: int) -> int:
        """Return a pod's charge for one of its GPUs; as requested on an unreported node."""
        report = self._reports.get(held[:2])
        return _charged(report, _part(held), gpu) if report is not None else held.gpu_milli

    def holders(self, cluster: str, node: str) -> Iterable[Key]:
        """Return the workloads with a live placement on the node, in any order."""
        used = self._used.get((cluster, node))
        return used.holders if used is not None else ()

    def changes_of(self, cluster: str, node: str) -> int:
        """Return a counter of changes to the node's holders and report."""
        used = self._used.get((cluster, node))
        return used.changes if used is not None else 0

    def charge(self, holdings: Sequence[Holding], sign: int) -> None:
        """Take (+1) or give back (-1) room without remembering for whom: see ``hold``."""
        for held in holdings:
            used = self._use(held, sign)
            if used.slot >= 0 and not self._stale_order:
                self._change(used.slot, held, sign)

    def lend(self, holdings: Sequence[Holding], sign: int) -> None:
        """The same for as long as something is tried: all of it is given back before a node is
        reported, goes or is cordoned. So of plain nodes it is enough that the arrays know."""
        self.arrange()
        slots, plain = self._slots, self._plain
        for held in holdings:
            slot = slots.get(held[:2])
            if slot is not None and plain[slot]:
                self._change(slot, held, sign)
            else:
                self.charge((held,), sign)

    def _use(self, held: Holding, sign: int) -> _Used:
        """Update the usage of a holding's node."""
        cluster, node, cpu_milli, memory_mib, gpu_milli, gpus, *_ = held
        used = self._used.get((cluster, node))
        if used is None:
            name = (cluster, node)
            used = self._used[name] = _Used(self._slots.get(name, -1))
        used.cpu_milli += sign * cpu_milli
        used.memory_mib += sign * memory_mib
        taken, change = used.gpu, sign * gpu_milli
        for gpu in gpus:
            taken[gpu] = taken.get(gpu, 0) + change
        if gpus and gpu_milli < WHOLE and not held.as_charged:
            parts, asked = used.parts, _part(held)
            for gpu in gpus:
                part = (gpu, asked)
                number = parts.get(part, 0) + sign
                if number:
                    parts[part] = number
                else:
                    del parts[part]
        for resource, number in held.pieces:
            used.pieces[resource] = used.pieces.get(resource, 0) + sign * number
        return used

    # Arrays

    @property
    def array_bytes(self) -> int:
        return self.arrays.nbytes

    def span(self, cluster: int) -> tuple[int, int]:
        """Return the first slot of a cluster, and the slot behind its last."""
        return self._spans[cluster]

    def slots_of(self, cluster: str) -> range:
        at = bisect_left(self.clusters, cluster)
        known = at < len(self.clusters) and self.clusters[at] == cluster
        return range(*self._spans[at]) if known else range(0)

    @property
    def arranged(self) -> bool:
        """Whether the arrays are up to date."""
        return not self._stale_order

    def arrange(self) -> None:
        """Rebuild the arrays if nodes were added, removed or changed."""
        if not self._stale_order:
            return
        self._stale_order = False
        self.layout += 1
        self.names = sorted(self._reports)
        self._slots = {name: slot for slot, name in enumerate(self.names)}
        for name, used in self._used.items():
            used.slot = self._slots.get(name, -1)
        self.clusters = sorted({cluster for cluster, _ in self.names})
        number = {cluster: index for index, cluster in enumerate(self.clusters)}
        count = len(self.names)
        kinds: dict[NodeKind, int] = {}
        kind = [kinds.setdefault(kind_of(self._reports[n]), len(kinds)) for n in self.names]
        self.kinds = list(kinds)
        width = max((len(r.gpus) for r in self._reports.values()), default=0)
        self.arrays = Arrays(
            cluster_of=[number[cluster] for cluster, _ in self.names],
            clusters=len(self.clusters),
            width=width,
            kind=kind,
            resources={s.resource for kind in kinds for s in kind.shares if counted(s)}
            | {name for kind in kinds for name, _ in kind.pieces},
        )
        starts = self.arrays.starts.tolist()
        self._spans = list(zip(starts, [*starts[1:], count], strict=True)) if count else []
        self.kinds_in = [frozenset(kind[first:last]) for first, last in self._spans]
        self.touched.arrange(count)
        columns = list(range(width))
        self._plain = [
            not report.shares and [gpu.index for gpu in report.gpus] == columns[: len(report.gpus)]
            for report in self.reports()
        ]
        plain = [is_ and not self.kinds[k].links for is_, k in zip(self._plain, kind, strict=True)]
        self.columns_only = [all(plain[first:last]) for first, last in self._spans]
        for slot in range(count):
            self._fill(slot)

    def _change(self, slot: int, held: Holding, sign: int) -> None:
        """Update a node as ``_fill`` would, for one pod more or less."""
        if not self._plain[slot]:
            self._fill(slot)
            return
        _, _, cpu_milli, memory_mib, gpu_milli, gpus, gpu_memory_mib, _, pieces, *_ = held
        if pieces:
            there = dict(pieces_on(self.report_at(slot)))
            for resource, number in pieces:
                if resource in there:
                    self.arrays.pieces[resource][slot] -= sign * number
        if gpu_milli == WHOLE or (not gpu_memory_mib and self.report_at(slot).fractions):
            self._shift(slot, sign * cpu_milli, sign * memory_mib, gpus, sign * gpu_milli)
            return
        self._shift(slot, sign * cpu_milli, sign * memory_mib, (), 0)
        report, part = self.report_at(slot), _part(held)
        for gpu in gpus:
            milli = _charged(report, part, gpu)
            self._shift(slot, 0, 0, (gpu,), sign * milli)

    def _shift(
        self, slot: int, cpu_milli: int, memory_mib: int, gpus: tuple[int, ...], gpu_milli: int
    ) -> None:
        """More is taken of a plain node, or less: then the amounts are below 0."""
        cell = self.arrays.cells
        cell.cpu[slot] -= cpu_milli
        cell.memory[slot] -= memory_mib
        if gpus:
            free, width = cell.gpu, cell.width
            whole = milli = 0
            for gpu in gpus:
                before = free[slot, gpu] if 0 <= gpu < width else ABSENT
                if before == ABSENT:
                    continue
                after = free[slot, gpu] = before - gpu_milli
                whole += (after >= WHOLE) - (before >= WHOLE)
                if after >= 0 <= before:
                    milli -= gpu_milli
                else:  # overdrawn capacity is not free
                    milli += max(after, 0) - max(before, 0)
            if whole:
                cell.whole[slot] += whole
            cell.milli[slot] += milli
            if cell.open[slot]:
                cell.free_milli[cell.cluster_of[slot]] += milli
        self.touched.add(slot)

    def _fill(self, slot: int) -> None:
        """Compute a node's free capacity from its report and live placements."""
        name = self.names[slot]
        report = self._reports[name]
        used = self._used.get(name)
        cpu_milli = report.allocatable.cpu_milli - report.foreign.cpu_milli
        memory_mib = report.allocatable.memory_mib - report.foreign.memory_mib
        taken: dict[int, int] = {}
        if used is not None:
            cpu_milli -= used.cpu_milli
            memory_mib -= used.memory_mib
            taken = used.gpu
        if report.shares or (used is not None and used.parts):
            taken = self._fill_shares(slot, report, used)
        for resource, number in pieces_on(report):
            left = number - foreign_pieces(report, resource)
            if used is not None and used.pieces:
                left -= used.pieces.get(resource, 0)
            self.arrays.pieces[resource][slot] = left
        cell = self.arrays.cells
        cell.cpu[slot] = cpu_milli
        cell.memory[slot] = memory_mib
        gpu = cell.gpu
        whole = milli = capacity = 0
        for position, device in enumerate(report.gpus):
            if not device.healthy:
                gpu[slot, position] = ABSENT
                continue
            free = WHOLE - device.withheld_milli - device.foreign_milli
            if taken:
                free -= taken.get(device.index, 0)
            gpu[slot, position] = free
            capacity += WHOLE
            if free >= WHOLE:
                whole += 1
            if free > 0:
                milli += free
        is_open = report.ready and report.schedulable and name not in self._cordoned
        counted_milli = cell.milli[slot] if cell.open[slot] else 0
        cluster = cell.cluster_of[slot]
        cell.free_milli[cluster] += (milli if is_open else 0) - counted_milli
        cell.all_milli[cluster] += capacity - cell.capacity_milli[slot]
        cell.whole[slot] = whole
        cell.milli[slot] = milli
        cell.capacity_milli[slot] = capacity
        cell.a_gpu[slot] = WHOLE / max(capacity, WHOLE)
        cell.open[slot] = is_open
        self.touched.add(slot)

    def _fill_shares(self, slot: int, report: NodeReport, used: _Used | None) -> dict[int, int]:
        """Return the used milli of each GPU, where fractions are charged by unit or by memory."""
        left = {share.resource: share.count for share in report.shares if counted(share)}
        taken: dict[int, int] = {}
        if used is not None:
            taken = dict(used.gpu)
            for resource in left:
                left[resource] -= used.pieces.get(resource, 0)
            for (gpu, part), number in used.parts.items():
                taken[gpu] += number * (_charged(report, part, gpu) - part.milli)
                share = enough(report.shares, part)
                if share is not None and share.resource in left:
                    left[share.resource] -= number
        for resource, pieces in left.items():
            self.arrays.pieces[resource][slot] = pieces
        return taken


def _part(held: Holding) -> Part:
    return Part(held.gpu_milli, held.gpu_memory_mib, held.mig_profile, held.isolation)


def _charged(report: NodeReport, part: Part, index: int) -> int:
    memory_mib = next((gpu.memory_mib for gpu in report.gpus if gpu.index == index), 0)
    return charged_milli(part, report.shares, memory_mib, index, fractions=report.fractions)


def kind_of(report: NodeReport) -> NodeKind:
    """Return the properties of a node that filters read."""
    gpus = tuple([(gpu.model, gpu.memory_mib) for gpu in report.gpus])
    links, resources = links_of(report.gpus), resources_of(report)
    return NodeKind(
        gpus,
        report.taints,
        report.fractions,
        report.shares,
        links,
        resources,
        pieces_on(report),
        tpus_on(report),
        tuple([gpu.index for gpu in report.gpus]),
        tuple([at for at, gpu in enumerate(report.gpus) if gpu.parts_only]),
    )


def _shape(report: NodeReport) -> tuple[NodeKind, dict[str, str]]:
    """Return the inputs of the arrays' layout and of cached filters."""
    return kind_of(report), report.labels


class Overlay:
    """Tentative charges on the fleet. A context manager."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._charged: dict[Hashable, tuple[Sequence[Holding], int]] = {}

    def __enter__(self) -> "Overlay":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for sign in (+1, -1):
            charged = [held for held, way in self._charged.values() if way == sign]
            self._fleet.lend(list(chain.from_iterable(charged)), -sign)
        self._charged.clear()

    def take(self, name: Hashable, holdings: Sequence[Holding]) -> None:
        self._charge(name, holdings, +1)

    def free(self, name: Hashable, holdings: Sequence[Holding]) -> None:
        """Treat held capacity as free."""
        self._charge(name, holdings, -1)

    def give_back(self, name: Hashable) -> None:
        """Revert the charge of this name, if any."""
        holdings, sign = self._charged.pop(name, ((), 0))
        self._fleet.lend(holdings, -sign)

    @contextmanager
    def without(self, names: Iterable[Hashable]) -> Iterator[None]:
        """Inside, as if these had not been charged."""
        aside = [(name, self._charged[name]) for name in names]
        for name, _ in aside:
            self.give_back(name)
        try:
            yield
        finally:
            for name, (holdings, sign) in aside:
                self._charge(name, holdings, sign)

    def _charge(self, name: Hashable, holdings: Sequence[Holding], sign: int) -> None:
        if name in self._charged:
            raise ValueError(f"{name!r} is charged already")
        self._charged[name] = (holdings, sign)
        self._fleet.lend(holdings, sign)
