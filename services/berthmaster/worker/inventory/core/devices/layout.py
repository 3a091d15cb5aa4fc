"""GPUs of a node and how they are allocated, from resources and labels. Pure.

A node offers GPUs as counts of extended resources. Each resource is a ``Way``: the positions of its
GPUs, and the milli of one unit. Example: ``nvidia.com/gpu: 8`` with ``nvidia.com/gpu.replicas: 4``
is two GPUs with units of 249 milli.

- Whole GPUs: nvidia.com/gpu, amd.com/gpu, Intel's.
- Replicas (time slicing or MPS): nvidia.com/gpu.shared, or nvidia.com/gpu with labels for replicas.
- Thousandths: berthmaster.io/gpu-milli of `berth serve shares`.
- MIG instances: nvidia.com/mig-*, or nvidia.com/gpu with a MIG product.
- HAMi, which lists its devices in an annotation.

Replicas may have any NVIDIA resource name (``rename`` of the device plugin): labels tell of
replicas, and the count is that of all GPUs. Unknown extended resources are reported as units.

Capacity of a GPU without units is withheld, at least 1 milli, so that a GPU allocated in units
never counts as whole.

MIG slices are resources of the node, so the GPU of a slice is unknown. Labels count the GPUs
(nvidia.com/gpu.count, which counts slices with a single profile, then a cloud's label does).
Otherwise ``lib/accelerators/mig.py`` computes the minimum number. If labels and resources
contradict each other, resources win, and a problem is reported.

Each vendor's GPUs have their own range of indices (``_FIRST_INDEX``), stable under changes of
another vendor's device plugin.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from msgspec import structs

from berthmaster.lib.accelerators import mig
from berthmaster.lib.accelerators.table import (
    AMD,
    COUNT,
    GKE_CLIENTS,
    GKE_PARTITION,
    GKE_STRATEGY,
    GPU_MILLI,
    GPU_MILLI_SHARED,
    HAMI_CORES,
    INTEL,
    KAI_FRACTION,
    MIG,
    NVIDIA,
    PRODUCT,
    SHARED,
    TPU,
    VENDOR,
    Board,
    How,
    board_of_intel,
    devices_told,
    gpus_told,
    how_of,
    kai_memory_mib,
    maker_of,
)
from berthmaster.lib.engine.fleet.shares import least_milli
from berthmaster.lib.messages.fleet import DeviceClaim, Share
from berthmaster.lib.messages.workload import Isolation
from berthmaster.worker.inventory.core.devices.amounts import (
    MAX_PIECES,
    HamiDevice,
    Nonsense,
    hami_devices,
    offered,
    quota,
)
from berthmaster.worker.inventory.core.devices.models import UNKNOWN, memory_of, model_of
from berthmaster.worker.inventory.core.objects import Node

GRAIN_MILLI: Final = 10  # HAMi and KAI hand out hundredths

WHOLE: Final = 1000
MAX_GPUS: Final = 64  # of one node; more than any has
MAX_OTHERS: Final = 16  # unknown resources of a node that are reported
_MIG_PRODUCT: Final = re.compile(r"-MIG-(.+?)(?:-SHARED)?\Z")
# By resource, how hard the limit of a part is.
_THOUSANDTHS: Final[Mapping[str, Isolation]] = {GPU_MILLI: "memory", GPU_MILLI_SHARED: "none"}
# By resource, the index of the first GPU; a node has at most MAX_GPUS of each.
_COUNTED: Final = (NVIDIA, AMD, *INTEL)
_FIRST_INDEX: Final[Mapping[str, int]] = {
    **{name: MAX_GPUS * at for at, name in enumerate(_COUNTED)},
    **dict.fromkeys(_THOUSANDTHS, 0),  # NVIDIA's
}
_FIRST_OF_OTHERS: Final = MAX_GPUS * len(_COUNTED)


class Gpu(NamedTuple):
    model: str
    memory_mib: int
    uuid: str = ""  # "" = unknown
    healthy: bool = True
    reserved_milli: int = 0  # never allocated in this way
    nvlink_domain: int | None = None  # None = unknown
    numa_node: int | None = None
    resource: str = ""  # extended resource of the whole GPU; "" = nvidia.com/gpu
    claim: DeviceClaim | None = None  # None = by extended resource


def indices_of(gpus: Sequence[Gpu]) -> tuple[int, ...]:
    """Return the index of each GPU, counted from its vendor's first."""
    found: list[int] = []
    following: dict[int, int] = {}
    for gpu in gpus:
        name = gpu.resource or NVIDIA
        if gpu.claim is not None:
            name = f"{gpu.claim.driver.removeprefix('gpu.')}/gpu"
        first = _FIRST_INDEX.get(name, _FIRST_OF_OTHERS)
        found.append(following.setdefault(first, first))
        following[first] += 1
    return tuple(found)


class Way(NamedTuple):
    """One resource of GPUs on a node."""

    resource: str
    positions: tuple[int, ...]
    milli: int  # milli of a unit
    kind: Literal["whole", "shared", "mig", "hami", "milli"] = "whole"
    kai_mib: int = 0  # memory that KAI allocates of each GPU; 0 = unknown
    least_milli: int = 0  # where parts are had in any size: of the smallest


class _Cut(NamedTuple):
    """MIG slices of one profile under one resource."""

    resource: str
    profile: mig.Profile
    pieces: int  # allocatable units
    slices: int  # existing slices, unhealthy ones included
    replicas: int = 1  # time-sliced units of each slice


class Layout(NamedTuple):
    gpus: tuple[Gpu, ...] = ()
    ways: tuple[Way, ...] = ()
    shares: tuple[Share, ...] = ()
    tpus: int = 0
    pieces: tuple[tuple[str, int], ...] = ()  # of other extended resources
    problems: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()  # problems that exclude no pods
    unplugged: tuple[tuple[str, str], ...] = ()  # by vendor: the problem of a missing plugin


def maker_of_gpu(gpu: Gpu) -> str:
    """Return the vendor of a GPU, from its resource or its driver."""
    if gpu.claim is not None:
        return maker_of(f"{gpu.claim.driver.removeprefix('gpu.')}/gpu")
    return maker_of(gpu.resource or NVIDIA)


def layout_of(node: Node, *, kai: bool) -> Layout:
    """Return the layout of a node. ``kai``: the cluster's scheduler shares GPUs by annotation.
    Impossible parts are left out and reported.
    """
    builder = _Builder(node, kai=kai)
    for step in (
        builder.tpus,
        builder.nvidia,
        builder.shared,
        builder.slices,
        builder.thousandths,
        builder.compare,
        builder.amd,
        builder.intel,
        builder.others,
    ):
        try:
            step()
        except Nonsense as nonsense:
            builder.problems.append(str(nonsense))
    return builder.layout()


class _Builder:
    """Adds one way after the other."""

    def __init__(self, node: Node, *, kai: bool) -> None:
        self._labels = node.metadata.labels
        self._annotations = node.metadata.annotations
        self._allocatable = node.status.allocatable
        self._capacity = node.status.capacity
        self._kai = kai
        self._gpus: list[Gpu] = []
        self._ways: list[Way] = []
        self._shares: list[Share] = []
        self._tpus = 0
        self._pieces: list[tuple[str, int]] = []
        self._cuts: list[_Cut] = []
        self._doubts: list[str] = []
        self.problems: list[str] = []

    def layout(self) -> Layout:
        unplugged = tuple(self._unplugged()) if not self.problems else ()
        self.problems += [text for _, text in unplugged]
        if len(self._gpus) > MAX_GPUS:
            self.problems.append(f"{len(self._gpus)} GPUs: more than any node has ({MAX_GPUS})")
            self._gpus, self._ways, self._shares = [], [], []
        everywhere = tuple(range(len(self._gpus)))
        return Layout(
            tuple(self._gpus),
            tuple(self._ways),
            tuple(structs.replace(s, gpus=()) if s.gpus == everywhere else s for s in self._shares),
            self._tpus,
            tuple(self._pieces),
            tuple(self.problems),
            tuple(self._doubts),
            unplugged,
        )

    def _unplugged(self) -> Iterator[tuple[str, str]]:
        """Yield vendors with GPUs in labels and without resources."""
        makers = {maker_of_gpu(gpu) for gpu in self._gpus}
        for maker in ("nvidia", "amd"):
            if maker not in makers and (told := gpus_told(self._labels, maker)):
                gpus = f"{told} GPUs of {maker}" if makers else f"{told} GPUs"
                text = f"labels tell of {gpus} and allocatable of none: no device plugin runs"
                yield maker, text

    # ---- One step for each way; steps raise Nonsense

    def tpus(self) -> None:
        """TPUs are only counted."""
        self._tpus = offered(self._allocatable, TPU)

    def nvidia(self) -> None:
        """nvidia.com/gpu: whole, replicas, MIG instances of one profile, or HAMi's."""
        pieces, all_pieces = self._count(NVIDIA)
        listed, problems = hami_devices(self._annotations)
        self.problems += problems
        if listed:
            self._hami(listed)
        elif not pieces and not all_pieces:
            return
        elif (of := self._only_profile()) is not None:
            self._cut(NVIDIA, of, pieces, all_pieces, self._replicas())
        elif (replicas := self._replicas()) > 1 and not self._count(SHARED)[1]:
            self._replicated(NVIDIA, pieces, all_pieces, replicas)
        else:
            there = max(pieces, min(all_pieces, self._whole_at_most(all_pieces)))
            self._whole(NVIDIA, pieces, there, model_of(self._labels), self._memory_mib())

    def _whole_at_most(self, otherwise: int) -> int:
        """Return labelled GPUs without slices: after a repartition, the kubelet still counts them
        as unhealthy whole GPUs.
        """
        told = gpus_told(self._labels)
        cuts = self._profiles_offered() if told else []
        return (
            told - mig.least_boards(mig.fitting(self._board(), cuts), cuts) if cuts else otherwise
        )

    def _profiles_offered(self) -> list[tuple[mig.Profile, int]]:
        """Return the readable counts of MIG resources."""
        found = []
        for name in sorted(self._capacity):
            of = mig.profile(name.removeprefix(MIG)) if how_of(name) is How.MIG else None
            if of is not None:
                try:
                    found.append((of, self._count(name)[1]))
                except Nonsense:
                    continue
        return [(of, count) for of, count in found if count]

    def _only_profile(self) -> mig.Profile | None:
        """Return the only MIG profile of all GPUs; None if there is none. Raises Nonsense."""
        product = self._labels.get(PRODUCT, "")
        found = _MIG_PRODUCT.search(product)
        key, told = (PRODUCT, found[1]) if found else (GKE_PARTITION, "")
        told = told or self._labels.get(GKE_PARTITION, "")
        if not told:
            return None
        of = mig.profile(told)
        if of is None:
            said = product if found else told
            raise Nonsense(f"label {key}: {said[:96]!r} names no MIG profile such as 1g.10gb")
        return of

    def amd(self) -> None:
        """amd.com/gpu: whole."""
        pieces, all_pieces = self._count(AMD)
        model, memory_mib = model_of(self._labels, amd=True), memory_of(self._labels, amd=True)
        self._whole(AMD, pieces, all_pieces, model, memory_mib)

    def intel(self) -> None:
        """gpu.intel.com/i915 and xe: whole."""
        board = board_of_intel(self._labels) or Board(UNKNOWN)
        for name in INTEL:
            pieces, all_pieces = self._count(name)
            self._whole(name, pieces, all_pieces, board.product, board.memory_mib)

    def shared(self) -> None:
        """Apply nvidia.com/gpu.shared or its renamed form: replicas under their own name."""
        pieces, all_pieces = self._count(SHARED)
        if all_pieces and (of := self._only_profile()) is not None:
            self._cut(SHARED, of, pieces, all_pieces, self._replicas())
        elif all_pieces:
            self._replicated(SHARED, pieces, all_pieces, max(1, self._replicas()))
        elif not self._gpus:
            self._renamed()

    def _renamed(self) -> None:
        told = gpus_told(self._labels)
        names = [name for name in sorted(self._allocatable) if self._may_be_renamed(name)]
        if not names or not told or (replicas := self._replicas()) == 1:
            return
        for name in names:
            pieces, all_pieces = self._count(name)
            if pieces and all_pieces == told * replicas:
                self._replicated(name, pieces, all_pieces, replicas)
                return

    def _may_be_renamed(self, name: str) -> bool:
        return name.startswith(VENDOR) and how_of(name) is How.OTHER

    def others(self) -> None:
        """Apply unknown resources that are no GPUs."""
        ways = {way.resource for way in self._ways}
        names = [
            name
            for name in sorted(self._allocatable)
            if how_of(name) is How.OTHER and name not in ways
        ]
        for name in names:
            try:
                pieces = min(quota(name, self._allocatable[name]), MAX_PIECES)
            except Nonsense as nonsense:
                self._doubts.append(str(nonsense))
                continue
            if pieces and len(self._pieces) == MAX_OTHERS:
                self._doubts.append(f"more than {MAX_OTHERS} other resources: {name[:80]} …")
                return
            if pieces > 0:
                self._pieces.append((name, pieces))

    def slices(self) -> None:
        """Apply nvidia.com/mig-<profile>: slices, or with .shared their replicas."""
        for name in sorted(self._allocatable.keys() | self._capacity.keys()):
            if not name.startswith(MIG) or how_of(name) not in (How.MIG, How.SHARED):
                continue
            said = name.removeprefix(MIG)
            shared = how_of(name) is How.SHARED
            of = mig.profile(said.removesuffix(".shared") if shared else said)
            try:
                pieces, all_pieces = self._count(name)
                if not all_pieces:
                    continue
                if of is None:
                    raise Nonsense(f"{name[:80]}: no MIG profile that we know")
                label = f"{name.removesuffix('.shared')}.replicas"
                replicas = self._replicas(label) if shared else 1
                self._cut(name, of, pieces, all_pieces, replicas)
            except Nonsense as nonsense:
                self.problems.append(str(nonsense))
        if self._cuts:
            self._lay_out_slices()

    def thousandths(self) -> None:
        """berthmaster.io/gpu-milli: parts of any size, and whole GPUs as 1000 of them."""
        for resource, isolation in _THOUSANDTHS.items():
            pieces, all_pieces = self._count(resource)
            if not all_pieces:
                continue
            positions = self._positions(-(-all_pieces // WHOLE))
            model, memory_mib = model_of(self._labels), self._memory_mib()
            self._gpus += [
                Gpu(model, memory_mib, healthy=(n + 1) * WHOLE <= pieces, resource=resource)
                for n in range(len(positions))
            ]
            self._ways.append(Way(resource, positions, 1, "milli"))
            if pieces:
                share = Share(
                    resource=resource,
                    milli=1,
                    count=pieces,
                    kind="milli",
                    isolation=isolation,
                    gpus=positions,
                )
                self._shares.append(share)

    def compare(self) -> None:
        """Labels and resources count the same GPUs of NVIDIA."""
        found = sum(maker_of_gpu(gpu) == "nvidia" for gpu in self._gpus)
        told = gpus_told(self._labels)
        if not found or not told or told == found or self._cuts:
            return
        self._doubts.append(f"labels count {told} GPUs and resources {found}: the resources count")

    # ---- how each is laid out

    def _count(self, name: str) -> tuple[int, int]:
        """Return allocatable and existing units. The difference is unhealthy."""
        pieces = offered(self._allocatable, name)
        return pieces, max(pieces, offered(self._capacity, name))

    def _replicas(self, label: str = f"{NVIDIA}.replicas") -> int:
        if label not in self._labels and self._labels.get(GKE_STRATEGY):
            label = GKE_CLIENTS
        text = self._labels.get(label, "1")
        if not text.isdecimal() or not 1 <= int(text[:9]) <= WHOLE:
            raise Nonsense(f"label {label[:80]}: {text[:64]!r} is no number from 1 to {WHOLE}")
        return int(text)

    def _memory_mib(self) -> int:
        """Return the memory of a whole GPU. For MIG products the label has the slice's, so the name
        comes first.
        """
        text = self._labels.get(f"{NVIDIA}.memory", "")
        product = self._labels.get(f"{NVIDIA}.product", "")
        if not text or _MIG_PRODUCT.search(product):
            return memory_of(self._labels)
        if not text.isdecimal() or len(text) > 8:
            self.problems.append(f"label {NVIDIA}.memory: {text[:64]!r} is no number of MiB")
            return memory_of(self._labels)
        return int(text)

    def _positions(self, count: int) -> tuple[int, ...]:
        if len(self._gpus) + count > MAX_GPUS:
            raise Nonsense(f"{len(self._gpus) + count} GPUs: more than any node has ({MAX_GPUS})")
        return tuple(range(len(self._gpus), len(self._gpus) + count))

    def _whole(
        self, resource: str, pieces: int, all_pieces: int, model: str, memory_mib: int
    ) -> None:
        if not all_pieces:
            return
        positions = self._positions(all_pieces)
        # Unhealthy ones are unknown: assume the last, behind the GPUs of unmanaged pods.
        named = "" if resource == NVIDIA else resource
        self._gpus += [
            Gpu(model, memory_mib, healthy=n < pieces, resource=named) for n in range(all_pieces)
        ]
        told = resource == NVIDIA and self._labels.get(f"{NVIDIA}.memory", "").isdecimal()
        kai_mib = kai_memory_mib(memory_mib) if told else 0
        self._ways.append(Way(resource, positions, WHOLE, kai_mib=kai_mib))
        if self._kai and resource == NVIDIA:  # KAI keeps shared GPUs as NVIDIA's
            self._shares.append(
                Share(
                    resource=KAI_FRACTION,
                    milli=GRAIN_MILLI,
                    memory_mib=kai_mib,
                    count=pieces * WHOLE // GRAIN_MILLI,
                    kind="kai",
                    gpus=positions,
                )
            )

    def _replicated(self, resource: str, pieces: int, all_pieces: int, replicas: int) -> None:
        healthy = -(-pieces // replicas)
        positions = self._positions(-(-all_pieces // replicas))
        milli = WHOLE // replicas
        memory_mib = self._memory_mib()
        spare = max(1, WHOLE - milli * replicas)
        model = model_of(self._labels)
        self._gpus += [
            Gpu(model, memory_mib, healthy=n < healthy, reserved_milli=spare)
            for n in range(len(positions))
        ]
        self._ways.append(Way(resource, positions, milli, "shared"))
        if not pieces:
            return
        # MPS divides the memory and holds each to its part, time slicing does neither.
        mps = self._by_mps()
        self._shares.append(
            Share(
                resource=resource,
                milli=milli,
                memory_mib=memory_mib // replicas if mps else 0,
                count=pieces,
                kind="shared",
                isolation="memory" if mps else "",
                gpus=positions,
            )
        )

    def _by_mps(self) -> bool:
        """Discovery names the strategy; before it has, the device plugin's own label tells."""
        said = (self._labels.get(f"{NVIDIA}.sharing-strategy"), self._labels.get(GKE_STRATEGY))
        strategy = next((one for one in said if one not in (None, "", "none")), None)
        if strategy is None:
            return self._labels.get("nvidia.com/mps.capable") == "true"
        return strategy == "mps"

    def _cut(
        self, resource: str, of: mig.Profile, pieces: int, all_pieces: int, replicas: int
    ) -> None:
        slices = -(-all_pieces // replicas)
        if slices > MAX_GPUS * mig.MOST_SLICES:
            raise Nonsense(f"{resource[:80]}: {slices} slices: more than any node has")
        if slices:
            self._cuts.append(_Cut(resource, of, pieces, slices, replicas))

    def _board(self) -> mig.Board:
        """Return how the node's GPUs can be partitioned, by labels."""
        is_slice = _MIG_PRODUCT.search(self._labels.get(PRODUCT, "")) is not None
        mib = "" if is_slice else self._labels.get(f"{NVIDIA}.memory", "")
        known_mib = int(mib) if mib.isdecimal() and len(mib) < 9 else 0
        return mig.board_of(model_of(self._labels), known_mib)

    def _lay_out_slices(self) -> None:
        """Place slices on the labelled number of GPUs, else on the minimum number."""
        slices = tuple((cut.profile, cut.slices) for cut in self._cuts)
        model, board = model_of(self._labels), mig.fitting(self._board(), slices)
        least = mig.least_boards(board, slices)
        if least + len(self._gpus) > MAX_GPUS:
            raise Nonsense(f"{least + len(self._gpus)} GPUs: more than any node has ({MAX_GPUS})")
        self._doubts += self._contradictions(model, least)
        count = gpus_told(self._labels) - len(self._gpus)
        loads: Sequence[int] = ()
        if least <= count <= MAX_GPUS - len(self._gpus):
            loads = mig.spread(board, slices, count) or (WHOLE,) * count
        while not loads:
            loads = mig.spread(board, slices, least)
            least += 1
        positions = self._positions(len(loads))
        memory_mib = self._memory_mib() or board.memory_gb * 1024
        self._gpus += [
            Gpu(model, memory_mib, reserved_milli=max(1, WHOLE - given)) for given in loads
        ]
        for cut in self._cuts:
            milli = max(1, mig.milli_of(cut.profile, board) // cut.replicas)
            in_turn = cut.replicas > 1 or cut.resource.endswith(".shared")
            self._ways.append(Way(cut.resource, positions, milli, "shared" if in_turn else "mig"))
            if not cut.pieces:
                continue
            if in_turn:
                share = Share(resource=cut.resource, milli=milli, count=cut.pieces)
            else:
                share = Share(
                    resource=cut.resource,
                    milli=milli,
                    memory_mib=cut.profile.memory_mib,
                    count=cut.pieces,
                    kind="mig",
                    # Needed if the resource is not named after the profile.
                    profile="" if cut.resource.startswith(MIG) else cut.profile.name,
                )
            self._shares.append(structs.replace(share, gpus=positions))

    def _contradictions(self, model: str, least: int) -> Iterator[str]:
        """Yield contradictions between labels and resources of slices."""
        board = self._board()
        for cut in self._cuts:
            if board.memory_slices(cut.profile) is None:
                yield f"{cut.resource[:80]}: {cut.profile.name} is no MIG profile of {model}"
        whole, told = len(self._gpus), gpus_told(self._labels)
        if told > MAX_GPUS:
            yield f"label {COUNT}: {told} GPUs are more than any node has ({MAX_GPUS})"
        elif told and told < whole + least:
            beside = f" beside {whole} whole ones" if whole else ""
            yield (
                f"label {COUNT}: {told} GPUs, but the MIG slices need at least {least}{beside}: "
                "the resources count"
            )
        named = [cut for cut in self._cuts if not cut.resource.startswith(MIG)]
        slices = sum(cut.slices for cut in named)
        devices = devices_told(self._labels) if named and not told else 0
        if devices and devices != slices:
            yield f"label {COUNT}: {devices} MIG slices, but resources count {slices}"

    def _hami(self, listed: tuple[HamiDevice, ...]) -> None:
        positions = self._positions(len(listed))
        self._gpus += [
            Gpu(d.model, d.memory_mib, d.uuid, d.healthy, numa_node=d.numa_node) for d in listed
        ]
        share = Share(
            resource=HAMI_CORES,
            milli=GRAIN_MILLI,
            count=len(listed) * WHOLE // GRAIN_MILLI,
            kind="hami",
            parts=min((device.parts for device in listed if device.healthy), default=0),
            gpus=positions,
        )
        self._ways.append(Way(NVIDIA, positions, WHOLE, "hami", least_milli=least_milli(share)))
        self._shares.append(share)
