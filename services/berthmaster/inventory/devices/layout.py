"""Which GPUs a node has and how they are handed out, by its resources and labels. Pure.

A node offers GPUs as counts of extended resources. One resource is one way of handing out: whole
(nvidia.com/gpu, amd.com/gpu, Intel's), replicas of a GPU (time slicing or MPS:
nvidia.com/gpu.shared, or nvidia.com/gpu where the labels tell of replicas), MIG instances
(nvidia.com/mig-*, or nvidia.com/gpu where the product is one), or by HAMi, which lists its devices
in an annotation. Each is a ``Way``: the positions of the GPUs behind it, and what one piece of it
comes to. Replicas may have any name of NVIDIA's: it is one where labels tell of replicas and the
count is that of all GPUs' (``rename`` of the device plugin).

Extended resources that the table does not know are told as they are, in pieces.

What a GPU does not offer in pieces is charged as held by others, and at least 1 milli of it, so
that nobody takes a GPU that is handed out in pieces only for one that can be had whole.
"""

import re
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from msgspec import structs

from berthmaster.accelerators import mig
from berthmaster.accelerators.labels import (
    GKE_CLIENTS,
    GKE_PARTITION,
    GKE_STRATEGY,
    Board,
    board_of_intel,
    gpus_told,
)
from berthmaster.accelerators.table import (
    AMD,
    HAMI_CORES,
    INTEL,
    KAI_FRACTION,
    MIG,
    NVIDIA,
    SHARED,
    TPU,
    VENDOR,
    How,
    how_of,
    kai_memory_mib,
)
from berthmaster.engine.fleet.shares import least_milli
from berthmaster.inventory.devices.amounts import MAX_PIECES, Nonsense, offered, quota
from berthmaster.inventory.devices.hami import HamiDevice, hami_devices
from berthmaster.inventory.devices.models import UNKNOWN, memory_of, model_of
from berthmaster.inventory.objects import Node
from berthmaster.messages.fleet import DeviceClaim, Share

GRAIN_MILLI: Final = 10  # HAMi and KAI hand out hundredths

WHOLE: Final = 1000
MAX_GPUS: Final = 64  # of one node; more than any has
MAX_OTHERS: Final = 16  # resources of a node that are told in pieces
_MIG_PRODUCT: Final = re.compile(rf"-MIG-({mig.WORDS})\Z")


class Gpu(NamedTuple):
    """One GPU of a node; its position is its index."""

    model: str
    memory_mib: int
    uuid: str = ""  # "" = nobody says
    healthy: bool = True
    reserved_milli: int = 0  # never handed out as it is
    nvlink_domain: int | None = None  # None = nobody says
    numa_node: int | None = None
    resource: str = ""  # as which a whole one is asked for; "" = NVIDIA
    claim: DeviceClaim | None = None  # None = it is not claimed but counted


class Way(NamedTuple):
    """One resource by which GPUs of a node are had."""

    resource: str
    positions: tuple[int, ...]
    milli: int  # what a piece comes to
    kind: Literal["whole", "shared", "mig", "hami"] = "whole"
    kai_mib: int = 0  # what KAI hands out of each GPU's memory; 0 = it is not told how much that is
    least_milli: int = 0  # where parts are had in any size: of the smallest


class Layout(NamedTuple):
    """The GPUs of a node."""

    gpus: tuple[Gpu, ...] = ()
    ways: tuple[Way, ...] = ()
    shares: tuple[Share, ...] = ()
    tpus: int = 0
    pieces: tuple[tuple[str, int], ...] = ()  # of other extended resources
    problems: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()  # what is wrong and keeps nobody away


def layout_of(node: Node, *, kai: bool) -> Layout:
    """What the node's resources and labels tell. ``kai``: the cluster's scheduler shares GPUs by
    annotation. What cannot be right is left out and told."""
    builder = _Builder(node, kai=kai)
    for step in (
        builder.tpus,
        builder.nvidia,
        builder.shared,
        builder.mig,
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
        self._doubts: list[str] = []
        self.problems: list[str] = []

    def layout(self) -> Layout:
        """All that was found."""
        told = gpus_told(self._labels)
        if not self._gpus and not self.problems and told:
            self.problems.append(
                f"labels tell of {told} GPUs and allocatable of none: no device plugin runs"
            )
        if len(self._gpus) > MAX_GPUS:
            self.problems.append(f"{len(self._gpus)} GPUs: more than any node has ({MAX_GPUS})")
            self._gpus, self._ways, self._shares = [], [], []
        return Layout(
            tuple(self._gpus),
            tuple(self._ways),
            tuple(self._shares),
            self._tpus,
            tuple(self._pieces),
            tuple(self.problems),
            tuple(self._doubts),
        )

    # ---- one way each; they raise Nonsense

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
        elif profile := self._only_profile():
            self._instances({NVIDIA: (profile, pieces)})
        elif (replicas := self._replicas()) > 1 and not self._count(SHARED)[1]:
            self._replicated(NVIDIA, pieces, replicas)
        else:
            self._whole(NVIDIA, pieces, all_pieces, model_of(self._labels), self._memory_mib())

    def _only_profile(self) -> str:
        """The MIG profile that all of its GPUs are cut into, or ""."""
        found = _MIG_PRODUCT.search(self._labels.get(f"{NVIDIA}.product", ""))
        told = found[1] if found is not None else self._labels.get(GKE_PARTITION, "")
        return told if mig.profile(told) is not None else ""

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
        """nvidia.com/gpu.shared, or as it was renamed: replicas under a name of their own."""
        pieces, _ = self._count(SHARED)
        if pieces:
            self._replicated(SHARED, pieces, max(1, self._replicas()))
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
                self._replicated(name, pieces, replicas)
                return

    def _may_be_renamed(self, name: str) -> bool:
        return name.startswith(VENDOR) and how_of(name) is How.OTHER

    def others(self) -> None:
        """What no row of the table knows, and the node has not said to be a GPU."""
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

    def mig(self) -> None:
        """nvidia.com/mig-<profile>: instances of any profiles."""
        found: dict[str, tuple[str, int]] = {}
        for name in sorted(self._allocatable):
            if how_of(name) is not How.MIG:
                continue
            profile = name.removeprefix(MIG)
            if mig.profile(profile) is None:
                self.problems.append(f"{name[:80]}: no MIG profile that we know")
            elif pieces := offered(self._allocatable, name):
                found[name] = (profile, pieces)
        if found:
            self._instances(found)
        self._slices_in_turn()

    def _slices_in_turn(self) -> None:
        """nvidia.com/mig-<profile>.shared: replicas of instances, as many of each as a label
        says."""
        for name in sorted(self._allocatable):
            if how_of(name) is not How.SHARED or not name.startswith(MIG):
                continue
            profile = name.removeprefix(MIG).removesuffix(".shared")
            slice_of = mig.profile(profile)
            pieces = offered(self._allocatable, name)
            if slice_of is None:
                self.problems.append(f"{name[:80]}: no MIG profile that we know")
            if slice_of is None or not pieces:
                continue
            replicas = self._replicas(f"{MIG}{profile}.replicas")
            self._instances({name: (profile, -(-pieces // replicas))})
            way, share = self._ways.pop(), self._shares.pop()
            milli = max(1, way.milli // replicas)
            self._ways.append(way._replace(milli=milli, kind="shared"))
            self._shares.append(
                structs.replace(
                    share, milli=milli, memory_mib=0, count=pieces, kind="shared", profile=""
                )
            )

    # ---- how each is laid out

    def _count(self, name: str) -> tuple[int, int]:
        """(pieces that can be had, pieces that are there). The difference is not healthy."""
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
        """Of one whole GPU; for MIG instances the label tells theirs, so the name counts first."""
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
        # Which of them are unhealthy is not told: the last, as foreign pods are charged to those
        # before them and ours to the first.
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
                )
            )

    def _replicated(self, resource: str, pieces: int, replicas: int) -> None:
        if not pieces:
            return
        count = -(-pieces // replicas)
        positions = self._positions(count)
        milli = WHOLE // replicas
        memory_mib = self._memory_mib()
        spare = max(1, WHOLE - milli * replicas)
        model = model_of(self._labels)
        self._gpus += [Gpu(model, memory_mib, reserved_milli=spare)] * count
        self._ways.append(Way(resource, positions, milli, "shared"))
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
            )
        )

    def _by_mps(self) -> bool:
        """Discovery names the strategy; before it has, the device plugin's own label tells."""
        said = (self._labels.get(f"{NVIDIA}.sharing-strategy"), self._labels.get(GKE_STRATEGY))
        strategy = next((one for one in said if one not in (None, "", "none")), None)
        if strategy is None:
            return self._labels.get("nvidia.com/mps.capable") == "true"
        return strategy == "mps"

    def _instances(self, found: Mapping[str, tuple[str, int]]) -> None:
        """MIG: as few GPUs as can hold these instances, which are spread evenly over them."""
        total_mib = self._memory_mib()
        sizes: list[tuple[str, int, int, int]] = []  # resource, slices, MiB, pieces
        for resource, (profile, pieces) in found.items():
            slice_of = mig.profile(profile)
            if slice_of is not None and pieces:
                sizes.append((resource, slice_of.slices, slice_of.memory_mib, pieces))
        if not sizes:
            return
        slices = sum(size * pieces for _, size, _, pieces in sizes)
        memory = sum(mib * pieces for _, _, mib, pieces in sizes)
        count = max(1, -(-slices // mig.SLICES), -(-memory // total_mib) if total_mib else 1)
        positions = self._positions(count)
        offer = [0] * count
        for _, size, _, pieces in sorted(sizes, key=lambda one: -one[1]):
            for _ in range(pieces):
                emptiest = offer.index(min(offer))
                offer[emptiest] += size * WHOLE // mig.SLICES
        model = model_of(self._labels)
        self._gpus += [
            Gpu(model, total_mib, reserved_milli=max(1, WHOLE - given)) for given in offer
        ]
        for resource, size, mib, pieces in sizes:
            milli = size * WHOLE // mig.SLICES
            self._ways.append(Way(resource, positions, milli, "mig"))
            self._shares.append(
                Share(
                    resource=resource,
                    milli=milli,
                    memory_mib=mib,
                    count=pieces,
                    kind="mig",
                    # A resource that is not named after its profile tells it so.
                    profile="" if resource.startswith(MIG) else found[resource][0],
                )
            )

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
        )
        self._ways.append(Way(NVIDIA, positions, WHOLE, "hami", least_milli=least_milli(share)))
        self._shares.append(share)
