"""All nodes of a cluster with what is on them, and which of them have changed. Pure.

What a change means is worked out once, when it comes: the shape of a node, the hold of a pod. A
node counts as changed only if that differs from before, so that a kubelet's heartbeats cost no
report. Changes by more than pods of ours are urgent: they are what nobody else could know.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from berthmaster.inventory.devices.charging import Part, charge
from berthmaster.inventory.devices.device_classes import Claimable, claimable
from berthmaster.inventory.devices.dra import (
    DeviceName,
    Grant,
    Offered,
    Pool,
    consumed_milli,
    grant_of,
    offered_by,
)
from berthmaster.inventory.devices.holds import Hold, hold_of
from berthmaster.inventory.devices.layout import WHOLE
from berthmaster.inventory.kinds import Problems, WatchedKind, named
from berthmaster.inventory.nodes import NodeShape, report, shape_of, unreadable
from berthmaster.inventory.objects import DeviceClass, Node, Pod, ResourceClaim, ResourceSlice
from berthmaster.messages.fleet import NodeReport, Stamp

Key = tuple[str, str]
_NOTHING: Final = Offered()


class NodeIndex:
    """The nodes of one cluster."""

    def __init__(self, cluster: str, problems: Problems) -> None:
        self._cluster = cluster
        self._problems = problems
        self._nodes: dict[str, Node] = {}
        self._bad: dict[str, str] = {}  # nodes that cannot be read, and why
        self._shapes: dict[str, NodeShape] = {}
        self._holds: dict[Key, Hold] = {}
        self._on_node: dict[str, dict[Key, Hold]] = {}
        self._slices: dict[Key, ResourceSlice] = {}
        self._slices_of: dict[str, set[Key]] = {}
        self._grants: dict[Key, Grant] = {}
        self._in_pool: dict[Pool, set[Key]] = {}
        self._classes: dict[str, Claimable] | None = None  # by name; None = nobody tells of them
        self._kai = False
        self._kept_labels: frozenset[str] = frozenset()
        self.dirty: dict[str, bool] = {}  # node -> urgent
        self.makeup_changed = True  # which nodes there are, or which GPUs they have

    # ---- what is asked of it

    def __len__(self) -> int:
        return len(self._shapes)

    def __contains__(self, name: str) -> bool:
        return name in self._shapes

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    @property
    def pods(self) -> int:
        """Pods that hold something."""
        return len(self._holds)

    def gpus(self) -> dict[str, int]:
        """GPUs by model."""
        counts: dict[str, int] = {}
        for shape in self._shapes.values():
            for gpu in shape.gpus:
                counts[gpu.model] = counts.get(gpu.model, 0) + 1
        return dict(sorted(counts.items()))

    def report(self, name: str, stamp: Stamp, now_s: float) -> NodeReport | None:
        """The node as it stands; None: there is no such node."""
        shape = self._shapes.get(name)
        if shape is None:
            return None
        holds = tuple(self._on_node.get(name, {}).values())
        claimed, orphaned, tpus = self._claims_on(shape, holds)
        charged = charge(
            shape.gpus,
            shape.ways,
            holds,
            claimed=claimed,
            orphaned=orphaned,
            claimed_tpus=tpus,
        )
        return report(self._cluster, name, shape, charged, stamp, now_s)

    def _claims_on(
        self, shape: NodeShape, holds: Iterable[Hold]
    ) -> tuple[dict[str, list[Part]], list[Part], int]:
        """(by uid of a pod what its claims got here, what belongs to no pod here, foreign TPUs).

        A claim that several pods share is charged once, to one that is not ours if there is one.
        """
        claimed: dict[str, list[Part]] = {}
        orphaned: list[Part] = []
        tpus = 0
        if not (self._grants and (shape.places or shape.tpu_devices)):
            return claimed, orphaned, tpus
        here = {hold.uid: hold for hold in holds}
        pools = {(driver, pool) for driver, pool, _ in (*shape.places, *shape.tpu_devices)}
        keys = {key for pool in pools for key in self._in_pool.get(pool, ())}
        for key in sorted(keys):
            grant = self._grants[key]
            users = sorted(
                (here[uid] for uid in grant.pods if uid in here),
                key=lambda hold: (hold.ours is not None, hold.uid),
            )
            for device, consumed in grant.devices:
                place = shape.places.get(device)
                if place is not None:
                    part = place.position, consumed_milli(place, consumed)
                    if users:
                        claimed.setdefault(users[0].uid, []).append(part)
                    else:
                        orphaned.append(part)
                elif device in shape.tpu_devices and not (users and users[0].ours):
                    tpus += 1
        return {uid: _by_position(parts) for uid, parts in claimed.items()}, orphaned, tpus

    # ---- nodes

    def set_node(self, node: Node) -> None:
        """A node as it is now."""
        name = node.metadata.name
        self._nodes[name] = node
        self._bad.pop(name, None)
        self._reshape(name)

    def doubt_node(self, name: str, why: str) -> None:
        """A node that cannot be read: what it was is not what it is."""
        self._bad[name] = why
        self._reshape(name)

    def drop_node(self, name: str) -> None:
        """The node was removed."""
        self._nodes.pop(name, None)
        self._bad.pop(name, None)
        self._reshape(name)

    def bad_nodes(self) -> list[str]:
        """Nodes that cannot be read."""
        return list(self._bad)

    def share_by_kai(self, kai: bool) -> None:
        """Whether the cluster's scheduler shares GPUs by annotation."""
        if kai != self._kai:
            self._kai = kai
            for name in self._nodes:
                self._reshape(name)

    def keep_labels(self, keys: frozenset[str]) -> None:
        """Labels by which flavors mean nodes: a report tells them, whatever else is left out."""
        if keys != self._kept_labels:
            self._kept_labels = keys
            for name in self._nodes:
                self._reshape(name)

    def _reshape(self, name: str) -> None:
        before = self._shapes.get(name)
        now: NodeShape | None = None
        if name in self._bad:
            now = unreadable(self._bad[name])
        elif (node := self._nodes.get(name)) is not None:
            keys = sorted(self._slices_of.get(name, ()))
            classes = None if self._classes is None else tuple(self._classes.values())
            devices = offered_by((self._slices[k] for k in keys), classes) if keys else _NOTHING
            now = shape_of(node, devices, kai=self._kai, kept_labels=self._kept_labels)
        if now == before:
            return
        if now is None:
            del self._shapes[name]
        else:
            self._shapes[name] = now
        self._problems.set(WatchedKind.NODES.value, name, now.problems if now is not None else ())
        self.dirty[name] = True
        if before is None or now is None or before.gpus != now.gpus:
            self.makeup_changed = True

    # ---- pods

    def set_pod(self, pod: Pod) -> None:
        """A pod as it is now."""
        key = (pod.metadata.namespace, pod.metadata.name)
        hold, problem = hold_of(pod)
        self._problems.set(WatchedKind.PODS.value, named(key), (problem,) if problem else ())
        self._hold(key, hold)

    def drop_pod(self, key: Key) -> None:
        """The pod is no more, or holds nothing any more."""
        self._problems.set(WatchedKind.PODS.value, named(key), ())
        self._hold(key, None)

    def _hold(self, key: Key, now: Hold | None) -> None:
        before = self._holds.get(key)
        if now == before:
            return
        for hold in (before, now):
            if hold is not None and hold.node in self._shapes:
                urgent = hold.ours is None or bool(hold.groups)
                self.dirty[hold.node] = urgent or self.dirty.get(hold.node, False)
        if before is not None and (now is None or now.node != before.node):
            on_node = self._on_node[before.node]
            del on_node[key]
            if not on_node:
                del self._on_node[before.node]
        if now is None:
            del self._holds[key]
        else:
            self._holds[key] = now
            self._on_node.setdefault(now.node, {})[key] = now

    # ---- devices by dynamic allocation

    def set_slice(self, found: ResourceSlice) -> None:
        """A slice as it is now."""
        key = (found.metadata.namespace, found.metadata.name)
        self.drop_slice(key)
        if found.spec.node_name:
            self._slices[key] = found
            self._slices_of.setdefault(found.spec.node_name, set()).add(key)
            self._reshape(found.spec.node_name)

    def drop_slice(self, key: Key) -> None:
        """The slice is no more."""
        gone = self._slices.pop(key, None)
        if gone is not None:
            of_node = self._slices_of[gone.spec.node_name]
            of_node.discard(key)
            if not of_node:
                del self._slices_of[gone.spec.node_name]
            self._reshape(gone.spec.node_name)

    def know_classes(self) -> None:
        """All classes were told that there are: what none of them means cannot be claimed."""
        if self._classes is None:
            self._reclass({})

    def set_class(self, found: DeviceClass) -> None:
        """A class as it is now."""
        known = dict(self._classes or {})
        known.pop(found.metadata.name, None)
        if (meant := claimable(found)) is not None:
            known[meant.name] = meant
        self._reclass(known)

    def drop_class(self, name: str) -> None:
        """The class is no more."""
        self._reclass({key: one for key, one in (self._classes or {}).items() if key != name})

    def _reclass(self, known: dict[str, Claimable]) -> None:
        if known != self._classes:
            self._classes = dict(sorted(known.items()))
            for name in self._slices_of:
                self._reshape(name)

    def set_claim(self, found: ResourceClaim) -> None:
        """A claim as it is now."""
        self._grant((found.metadata.namespace, found.metadata.name), grant_of(found))

    def drop_claim(self, key: Key) -> None:
        """The claim is no more."""
        self._grant(key, None)

    def _grant(self, key: Key, now: Grant | None) -> None:
        before = self._grants.get(key)
        if now == before:
            return
        for pool in _pools(before):
            self._in_pool[pool].discard(key)
            if not self._in_pool[pool]:
                del self._in_pool[pool]
        for pool in _pools(now):
            self._in_pool.setdefault(pool, set()).add(key)
        if now is None:
            del self._grants[key]
        else:
            self._grants[key] = now
        touched = {one.device for grant in (before, now) if grant for one in grant.devices}
        for name in self._with(touched):
            self.dirty[name] = True

    def _with(self, devices: set[DeviceName]) -> Iterator[str]:
        for name in self._slices_of:
            shape = self._shapes.get(name)
            if shape is not None and (
                any(device in shape.places for device in devices)
                or any(device in shape.tpu_devices for device in devices)
            ):
                yield name


def _pools(grant: Grant | None) -> set[Pool]:
    return {one.device[:2] for one in grant.devices} if grant is not None else set()


def _by_position(parts: Iterable[Part]) -> list[Part]:
    """One part of each GPU: a pod may have several shares of one."""
    sums: dict[int, int] = {}
    for position, milli in parts:
        sums[position] = sums.get(position, 0) + milli
    return [(position, min(milli, WHOLE)) for position, milli in sums.items()]
