"""Nodes of a cluster with their pods, and the changed ones. Pure.

A change is evaluated once, on arrival: the shape of a node, the hold of a pod. A node counts as
changed only if the result differs, so heartbeats of a kubelet cost no report. Changes beyond
managed pods are urgent, because nothing else reports them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

from berthmaster.lib.kube.controller.problems import Problems, named
from berthmaster.lib.messages.fleet import NodeReport, Stamp
from berthmaster.worker.inventory.core.devices.amounts import nonsense_of
from berthmaster.worker.inventory.core.devices.charging import Claimed, Part, charge
from berthmaster.worker.inventory.core.devices.device_classes import Claimable, claimable
from berthmaster.worker.inventory.core.devices.dra import (
    Grant,
    Offered,
    Pool,
    consumed_milli,
    grant_of,
    is_ours_to_count,
    is_tpu,
    offered_by,
)
from berthmaster.worker.inventory.core.devices.holds import Hold, hold_of
from berthmaster.worker.inventory.core.devices.layout import WHOLE
from berthmaster.worker.inventory.core.kinds import HOLDERS, WatchedKind
from berthmaster.worker.inventory.core.nodes import NodeShape, report, shape_of, unreadable
from berthmaster.worker.inventory.core.objects import (
    DeviceClass,
    Node,
    Pod,
    ResourceClaim,
    ResourceSlice,
)

Key = tuple[str, str]
MAX_TOLD: Final = 20  # problems with the holders of one node
_NOTHING: Final = Offered()


class NodeIndex:
    def __init__(self, cluster: str, problems: Problems) -> None:
        self._cluster = cluster
        self._problems = problems
        self._nodes: dict[str, Node] = {}
        self._bad: dict[str, str] = {}  # unreadable nodes and their errors
        self._shapes: dict[str, NodeShape] = {}
        self._holds: dict[Key, Hold] = {}
        self._on_node: dict[str, dict[Key, Hold]] = {}
        self._slices: dict[Key, ResourceSlice] = {}
        self._slices_of: dict[str, set[Key]] = {}
        self._pools_on: dict[str, frozenset[Pool]] = {}  # of GPUs and TPUs, by node
        self._grants: dict[Key, Grant] = {}
        self._in_pool: dict[Pool, set[Key]] = {}
        self._classes: dict[str, Claimable] | None = None  # by name; None = not readable
        self._kai = False
        self._kept_labels: frozenset[str] = frozenset()
        self.dirty: dict[str, bool] = {}  # node -> urgent
        self.makeup_changed = True  # the set of nodes or their GPUs changed

    # ---- Queries

    def __len__(self) -> int:
        return len(self._shapes)

    def __contains__(self, name: str) -> bool:
        return name in self._shapes

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    @property
    def pods(self) -> int:
        """Return the number of pods with resources."""
        return len(self._holds)

    def gpus(self) -> dict[str, int]:
        """GPUs by model."""
        counts: dict[str, int] = {}
        for shape in self._shapes.values():
            for gpu in shape.gpus:
                counts[gpu.model] = counts.get(gpu.model, 0) + 1
        return dict(sorted(counts.items()))

    def report(self, name: str, stamp: Stamp, now_s: float) -> NodeReport | None:
        """Return the report of a node; None if it does not exist."""
        shape = self._shapes.get(name)
        if shape is None:
            return None
        on_node = self._on_node.get(name, {})
        holds = tuple(on_node.values())
        charged = charge(shape.gpus, shape.ways, holds, self._claims_on(name, shape, holds))
        self._problems.set(HOLDERS, name, charged.problems[:MAX_TOLD])
        read = (
            f"pod {named(key)}: {hold.problems[0]}"
            for key, hold in on_node.items()
            if hold.problems
        )
        doubt = next(chain(charged.problems, read), "")
        return report(self._cluster, name, shape, charged, stamp, now_s, doubt=doubt)

    def _claims_on(self, name: str, shape: NodeShape, holds: Iterable[Hold]) -> Claimed:
        """Return the claims on a node.

        A shared claim is charged once, to an unmanaged pod if possible. A device of the node's
        pools without a slice still is one of its GPUs or TPUs, unknown which.
        """
        pools = self._pools_on.get(name, frozenset())
        keys = {key for pool in pools for key in self._in_pool.get(pool, ())}
        if not keys:
            return Claimed()
        claimed: dict[str, list[Part]] = {}
        orphaned: list[Part] = []
        unknown: Counter[str] = Counter()
        problems: list[str] = []
        tpus = 0
        here = {hold.uid: hold for hold in holds}
        for key in sorted(keys):
            grant = self._grants[key]
            users = sorted(
                (here[uid] for uid in grant.pods if uid in here),
                key=lambda hold: (hold.ours is not None, hold.uid),
            )
            foreign = not (users and users[0].ours)
            for device, consumed in grant.devices:
                place = shape.places.get(device)
                if place is not None:
                    part = place.position, consumed_milli(place, consumed)
                    if users:
                        claimed.setdefault(users[0].uid, []).append(part)
                    else:
                        orphaned.append(part)
                elif device in shape.tpu_devices:
                    tpus += foreign
                elif device[:2] in pools:
                    problems.append(
                        f"claim {named(key)}: no ResourceSlice lists device {device[2][:64]!r} of "
                        f"pool {device[1][:64]!r}; it counts as a whole one of this node"
                    )
                    if is_tpu(device[0]):
                        tpus += foreign
                    else:
                        unknown[users[0].uid if users else ""] += 1
        parts = {uid: _by_position(parts) for uid, parts in claimed.items()}
        return Claimed(parts, tuple(orphaned), unknown, tpus, tuple(problems))

    # ---- nodes

    def set_node(self, node: Node) -> None:
        name = node.metadata.name
        self._nodes[name] = node
        self._bad.pop(name, None)
        self._reshape(name)

    def doubt_node(self, name: str, why: str) -> None:
        """Close an unreadable node: its last known state may be wrong."""
        self._bad[name] = why
        self._reshape(name)

    def drop_node(self, name: str) -> None:
        self._nodes.pop(name, None)
        self._bad.pop(name, None)
        self._reshape(name)

    def bad_nodes(self) -> list[str]:
        return list(self._bad)

    def share_by_kai(self, kai: bool) -> None:
        """Whether the cluster's scheduler shares GPUs by annotation."""
        if kai != self._kai:
            self._kai = kai
            for name in self._nodes:
                self._reshape(name)

    def keep_labels(self, keys: frozenset[str]) -> None:
        """Set the labels of Kueue's flavors, which reports always contain."""
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
            self._problems.set(HOLDERS, name, ())
        else:
            self._shapes[name] = now
        self._problems.set(WatchedKind.NODES.value, name, now.problems if now is not None else ())
        self.dirty[name] = True
        if before is None or now is None or before.gpus != now.gpus:
            self.makeup_changed = True

    # ---- pods

    def set_pod(self, pod: Pod) -> None:
        key = (pod.metadata.namespace, pod.metadata.name)
        hold = hold_of(pod)
        problems = hold.problems if hold is not None else ()
        self._problems.set(WatchedKind.PODS.value, named(key), problems)
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
        key = (found.metadata.namespace, found.metadata.name)
        self.drop_slice(key)
        if found.spec.node_name:
            self._slices[key] = found
            self._slices_of.setdefault(found.spec.node_name, set()).add(key)
            self._repool(found.spec.node_name)

    def drop_slice(self, key: Key) -> None:
        gone = self._slices.pop(key, None)
        if gone is not None:
            of_node = self._slices_of[gone.spec.node_name]
            of_node.discard(key)
            if not of_node:
                del self._slices_of[gone.spec.node_name]
            self._repool(gone.spec.node_name)

    def _repool(self, name: str) -> None:
        specs = [self._slices[key].spec for key in self._slices_of.get(name, ())]
        pools = {(one.driver, one.pool.name) for one in specs if is_ours_to_count(one.driver)}
        self._pools_on[name] = frozenset(pools)
        if not pools:
            del self._pools_on[name]
        self._reshape(name)

    def know_classes(self) -> None:
        """Note that all DeviceClasses are known, so devices without a class cannot be claimed."""
        if self._classes is None:
            self._reclass({})

    def set_class(self, found: DeviceClass) -> None:
        known = dict(self._classes or {})
        known.pop(found.metadata.name, None)
        if (meant := claimable(found)) is not None:
            known[meant.name] = meant
        self._reclass(known)

    def drop_class(self, name: str) -> None:
        self._reclass({key: one for key, one in (self._classes or {}).items() if key != name})

    def _reclass(self, known: dict[str, Claimable]) -> None:
        if known != self._classes:
            self._classes = dict(sorted(known.items()))
            for name in self._slices_of:
                self._reshape(name)

    def set_claim(self, found: ResourceClaim) -> None:
        key = (found.metadata.namespace, found.metadata.name)
        grant = grant_of(found)
        consumed = (dict(one.consumed) for one in grant.devices) if grant is not None else ()
        self._problems.set(WatchedKind.CLAIMS.value, named(key), nonsense_of(consumed))
        self._grant(key, grant)

    def drop_claim(self, key: Key) -> None:
        self._problems.set(WatchedKind.CLAIMS.value, named(key), ())
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
        touched = _pools(before) | _pools(now)
        for name, pools in self._pools_on.items():
            if name in self._shapes and pools & touched:
                self.dirty[name] = True


def _pools(grant: Grant | None) -> set[Pool]:
    return {one.device[:2] for one in grant.devices} if grant is not None else set()


def _by_position(parts: Iterable[Part]) -> list[Part]:
    """Return one entry per GPU: a pod may have several shares of one."""
    sums: dict[int, int] = {}
    for position, milli in parts:
        sums[position] = sums.get(position, 0) + milli
    return [(position, min(milli, WHOLE)) for position, milli in sums.items()]
