"""The inventory of a worker cluster: object changes in, facts out. Pure.

Implements ``Source`` of the fact writer. A fact is computed at its report, so a burst of changes
costs one report. Example: ten pods start on node n1 within a second, and one NodeReport of n1
follows. An unknown subject is reported as gone. Facts of earlier process runs are compared only
after their kind was listed, because an empty mirror proves nothing.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from berthmaster.lib.jobs.kinds.job import JOB
from berthmaster.lib.jobs.kinds.kind import JobKind
from berthmaster.lib.jobs.kinds.table import KINDS
from berthmaster.lib.kube.controller.problems import Problems, Unlisted
from berthmaster.lib.kube.mirror import Added, Change, Deleted, Listed, Unreadable, Updated
from berthmaster.lib.kube.objects import key_of
from berthmaster.lib.messages.fleet import (
    KUBERNETES_VERSION,
    ClusterProfile,
    CopyReport,
    FleetFact,
    NodeGone,
    NodeReport,
    QueueReport,
    Stamp,
    UnlistedKind,
)
from berthmaster.lib.nats import subjects
from berthmaster.worker.inventory.core.kinds import WatchedKind
from berthmaster.worker.inventory.core.node_index import NodeIndex
from berthmaster.worker.inventory.core.queue_index import QueueIndex
from berthmaster.worker.inventory.core.quota_names import QuotaNames

KEEP_COPY_S: Final = 48 * 3600.0  # renewed hourly: long enough for a bus that is away for days
KEEP_GONE_COPY_S: Final = 600.0
KEEP_GONE_S: Final = 7 * 86_400.0  # autoscalers never reuse node names
NEW_WORDS_S: Final = 60.0  # between two reports of other words for the same failure
MAX_WHY_CHARS: Final = 500
# Kinds behind each fact. A fact waits until all are listed once, since an earlier run's fact is
# closer to the truth than half of a new one.
_MADE_OF: Final = {
    "node": frozenset(
        (
            *(WatchedKind.NODES, WatchedKind.PODS, WatchedKind.SLICES, WatchedKind.CLAIMS),
            WatchedKind.CLASSES,
        )
    ),
    "queue": frozenset(
        (
            *(WatchedKind.CLUSTER_QUEUES, WatchedKind.LOCAL_QUEUES, WatchedKind.FLAVORS),
            WatchedKind.COHORTS,
        )
    ),
    "copy": frozenset((WatchedKind.COPIES, WatchedKind.WAITING)),
}
KAI_CRD: Final = "queues.scheduling.run.ai"
Told = tuple[FleetFact, float | None]


class Inventory:
    def __init__(
        self,
        cluster: str,
        labels: Mapping[str, str] | None = None,
        device_classes: Mapping[str, str] | None = None,
        *,
        jobs: str = "",
    ) -> None:
        """``labels``: labels of the cluster from its operator. ``device_classes``: Kueue's resource
        name of each DeviceClass, from its operator. ``jobs``: the executor's setting for optional
        kinds of job objects.
        """
        self._cluster = cluster
        self._labels = dict(labels or {})
        self._jobs = jobs
        self._version = ""
        self._uid = ""
        self._unlisted: dict[str, UnlistedKind] = {}  # by the name for people
        self._worded_s: dict[str, float] = {}  # time of the last change of the text
        self._unread: set[WatchedKind] = set()  # required kinds never listed
        self._profile_before: ClusterProfile | None = None  # of an earlier life
        self._served: dict[WatchedKind, bool] = dict.fromkeys(WatchedKind, False)
        self._listed: set[WatchedKind] = set()
        self._definitions: set[str] = set()
        self._earlier: dict[str, FleetFact] = {}
        self._dirty: dict[str, bool] = {}
        self._profile = subjects.profile(cluster)
        self.problems = Problems()
        self.nodes = NodeIndex(cluster, self.problems)
        self.queues = QueueIndex(cluster, self.problems)
        self._quota_names = QuotaNames(device_classes or {}, self.problems)
        self._set: dict[WatchedKind, Callable[[Any], None]] = {
            WatchedKind.NODES: self.nodes.set_node,
            WatchedKind.PODS: self.nodes.set_pod,
            WatchedKind.WAITING: self.queues.set_waiting,
            WatchedKind.SLICES: self.nodes.set_slice,
            WatchedKind.CLAIMS: self.nodes.set_claim,
            WatchedKind.CLASSES: self._set_class,
            WatchedKind.CLUSTER_QUEUES: self.queues.set_queue,
            WatchedKind.LOCAL_QUEUES: self.queues.set_local,
            WatchedKind.FLAVORS: self._set_flavor,
            WatchedKind.COHORTS: self.queues.set_cohort,
            WatchedKind.COPIES: self.queues.set_copy,
            WatchedKind.SENT_JOBS: self.queues.set_sent_job,
            WatchedKind.DEFINITIONS: self._set_definition,
            WatchedKind.CONFIGURATION: self._quota_names.set_config,
        }
        self._drop: dict[WatchedKind, Callable[[tuple[str, str]], None]] = {
            WatchedKind.NODES: lambda key: self.nodes.drop_node(key[1]),
            WatchedKind.PODS: self.nodes.drop_pod,
            WatchedKind.WAITING: self.queues.drop_waiting,
            WatchedKind.SLICES: self.nodes.drop_slice,
            WatchedKind.CLAIMS: self.nodes.drop_claim,
            WatchedKind.CLASSES: lambda key: self._drop_class(key[1]),
            WatchedKind.CLUSTER_QUEUES: lambda key: self.queues.drop_queue(key[1]),
            WatchedKind.LOCAL_QUEUES: self.queues.drop_local,
            WatchedKind.FLAVORS: lambda key: self._drop_flavor(key[1]),
            WatchedKind.COHORTS: lambda key: self.queues.drop_cohort(key[1]),
            WatchedKind.COPIES: self.queues.drop_copy,
            WatchedKind.SENT_JOBS: lambda key: None,  # the result of a Job stays
            WatchedKind.DEFINITIONS: self._drop_definition,
            WatchedKind.CONFIGURATION: self._quota_names.drop_config,
        }

    # ---- Input

    def take(self, kind: WatchedKind, change: Change[Any]) -> None:
        match change:
            case Added(object=found) | Updated(object=found):
                self._set[kind](found)
            case Deleted(object=found):
                self._drop[kind](key_of(found.metadata))
            case Unreadable(object=bad):
                if kind is WatchedKind.NODES:
                    self.nodes.doubt_node(bad.name, f"cannot be read: {bad.why}")
                else:
                    self.problems.doubt(kind.value, (bad.namespace, bad.name), bad.why)
            case Listed():
                self._listed.add(kind)
                self._read_again({kind})
                self._serve(kind, True)
                if kind is WatchedKind.CLASSES:
                    self.nodes.know_classes()
                self._compare_with_earlier()

    def absent(self, kind: WatchedKind) -> None:
        """Note that the cluster does not serve a kind."""
        self._listed.add(kind)  # as an empty list would be
        self._serve(kind, False)
        self._compare_with_earlier()

    def _serve(self, kind: WatchedKind, served: bool) -> None:
        if served == self._served[kind]:
            return
        self._served[kind] = served
        self._dirty[self._profile] = True
        if kind is WatchedKind.CLUSTER_QUEUES:
            self._dirty |= dict.fromkeys(self._queue_subjects(), True)
        elif kind is WatchedKind.COPIES:
            self._dirty |= dict.fromkeys(self._copy_subjects(), True)

    def unreadable(self, kind: WatchedKind, keys: Iterable[tuple[str, str]]) -> None:
        """Note unreadable objects of a kind. A mirror cannot report the removal of an object that
        it never read.
        """
        if kind is not WatchedKind.NODES:
            self.problems.doubted(kind.value, keys)
            return
        known = {name for _, name in keys}
        for name in self.nodes.bad_nodes():
            if name not in known:
                self.nodes.drop_node(name)

    def unlisted(self, found: Iterable[Unlisted], now_s: float) -> None:
        """Take over which kinds cannot be listed now, although the API server answers."""
        before, now = dict(self._unlisted), {one.name: one for one in found}
        for name in before.keys() - now.keys():
            del self._unlisted[name], self._worded_s[name]
        for name, one in now.items():
            known = before.get(name)
            why = one.why[:MAX_WHY_CHARS]
            if known is None:
                self._unlisted[name] = UnlistedKind(kind=name, why=why, since_s=now_s - one.for_s)
            elif why != known.why and now_s >= self._worded_s[name] + NEW_WORDS_S:
                self._unlisted[name] = msgspec.structs.replace(known, why=why)
            if self._unlisted[name] is not known:
                self._worded_s[name] = now_s
            kind = WatchedKind(one.kind)
            if kind not in self._listed:
                self._unread.add(kind)
                self._serve(kind, True)  # a server without the kind says so
        self._read_again(self._unread - {WatchedKind(one.kind) for one in now.values()})
        if self._unlisted != before:
            self._dirty[self._profile] = True

    def _read_again(self, kinds: set[WatchedKind]) -> None:
        """Report subjects that waited for these kinds."""
        if self._unread & kinds:
            self._unread -= kinds
            self._dirty |= dict.fromkeys(self.everything(), True)

    def set_uid(self, uid: str) -> None:
        """Of the API server's namespace kube-system."""
        if uid != self._uid:
            self._uid = uid
            self._dirty[self._profile] = True

    def set_version(self, version: str) -> None:
        """Of the API server."""
        if version != self._version:
            self._version = version
            self._dirty[self._profile] = True

    def _set_flavor(self, found: Any) -> None:
        self.queues.set_flavor(found)
        self.nodes.keep_labels(self.queues.flavor_labels)

    def _drop_flavor(self, name: str) -> None:
        self.queues.drop_flavor(name)
        self.nodes.keep_labels(self.queues.flavor_labels)

    def _set_class(self, found: Any) -> None:
        self.nodes.set_class(found)
        self._quota_names.set_class(found)

    def _drop_class(self, name: str) -> None:
        self.nodes.drop_class(name)
        self._quota_names.drop_class(name)

    def _set_definition(self, found: Any) -> None:
        established = any(c.type == "Established" and c.true for c in found.status.conditions)
        names = self._definitions | {found.metadata.name}
        self._define(names if established else self._definitions - {found.metadata.name})

    def _drop_definition(self, key: tuple[str, str]) -> None:
        self._define(self._definitions - {key[1]})

    def _define(self, names: set[str]) -> None:
        if names != self._definitions:
            self._definitions = names
            self._dirty[self._profile] = True
            self.nodes.share_by_kai(KAI_CRD in names)

    # ---- Output

    def changes(self) -> Mapping[str, bool]:
        """Return changed subjects since the last call; True = urgent."""
        changed, self._dirty = self._dirty, {}
        nodes, self.nodes.dirty = self.nodes.dirty, {}
        for name, urgent in nodes.items():
            changed[subjects.node(self._cluster, name)] = urgent
        queues, self.queues.dirty_queues = self.queues.dirty_queues, {}
        for name in queues:
            changed[subjects.queue_report(self._cluster, name)] = True
        copies, self.queues.dirty_copies = self.queues.dirty_copies, {}
        for key in copies:
            changed[subjects.copy_report(self._cluster, *key)] = True
        if self.nodes.makeup_changed or self._quota_names.changed:
            self.nodes.makeup_changed = self._quota_names.changed = False
            changed[self._profile] = True
        return changed

    def everything(self) -> Iterable[str]:
        """Yield every subject with a fact, the profile first."""
        yield self._profile
        for name in self.nodes:
            yield subjects.node(self._cluster, name)
        yield from self._queue_subjects()
        yield from self._copy_subjects()

    def _queue_subjects(self) -> list[str]:
        return [subjects.queue_report(self._cluster, name) for name in self.queues.queues()]

    def _copy_subjects(self) -> list[str]:
        return [subjects.copy_report(self._cluster, *key) for key in self.queues.copies()]

    def earlier(self, facts: Sequence[FleetFact]) -> None:
        """Set the facts of earlier process runs."""
        self._earlier = {}
        for fact in facts:
            match fact:
                case ClusterProfile():
                    self._profile_before = fact
                case NodeReport(node=name):
                    self._earlier[subjects.node(self._cluster, name)] = fact
                case QueueReport(queue=name, gone=False):
                    self._earlier[subjects.queue_report(self._cluster, name)] = fact
                case CopyReport(namespace=space, workload=name, gone=False):
                    self._earlier[subjects.copy_report(self._cluster, space, name)] = fact
        self._compare_with_earlier()

    def _compare_with_earlier(self) -> None:
        """Report what has disappeared since earlier runs, as far as known."""
        for subject, fact in list(self._earlier.items()):
            match fact:
                case NodeReport(node=name):
                    kind, there = WatchedKind.NODES, name in self.nodes
                case QueueReport(queue=name):
                    kind, there = WatchedKind.CLUSTER_QUEUES, self.queues.has_queue(name)
                case CopyReport(namespace=space, workload=name):
                    kind, there = WatchedKind.COPIES, self.queues.has_copy((space, name))
                case _:
                    continue
            if kind in self._listed:
                del self._earlier[subject]
                if not there or not self._served[kind]:
                    self._dirty[subject] = True

    def fact(self, subject: str, stamp: Stamp, now_s: float) -> Told | None:
        """Return the fact of a subject now."""
        _, kind, names = subjects.parse_fact(subject)
        if self._unread & _MADE_OF.get(kind, frozenset()):
            return None
        match kind, names:
            case "profile", ():
                return self._profile_now(stamp, now_s), None
            case "node", (name,):
                report = self.nodes.report(name, stamp, now_s)
                if report is not None:
                    return report, None
                return self._node_gone(name, stamp, now_s), KEEP_GONE_S
            case "queue", (name,):
                served = self._served[WatchedKind.CLUSTER_QUEUES]
                queue = self.queues.queue(name, stamp, now_s, served=served)
                return queue, KEEP_GONE_S if queue.gone else None
            case "copy", (space, name):
                served = self._served[WatchedKind.COPIES]
                copy = self.queues.copy((space, name), stamp, now_s, served=served)
                return copy, KEEP_GONE_COPY_S if copy.gone else KEEP_COPY_S
        return None

    def _is_made(self, kind: JobKind) -> bool:
        there = kind is JOB or kind.definition in self._definitions
        return there and kind.setting in ("", self._jobs)

    def _node_gone(self, name: str, stamp: Stamp, now_s: float) -> NodeGone:
        return NodeGone(cluster=self._cluster, node=name, stamp=stamp, observed_at_s=now_s)

    def _profile_now(self, stamp: Stamp, now_s: float) -> ClusterProfile:
        served = self._served
        properties = {
            "berth/runtime": "kubernetes",
            "berth/kueue": "served" if served[WatchedKind.CLUSTER_QUEUES] else "absent",
            "berth/dra": "served" if served[WatchedKind.SLICES] else "absent",
        }
        if self._version:
            properties[KUBERNETES_VERSION] = self._version
        nodes, gpus = len(self.nodes), self.nodes.gpus()
        if self._unread & _MADE_OF["node"] and self._profile_before is not None:
            nodes, gpus = self._profile_before.nodes, self._profile_before.gpus
        return ClusterProfile(
            cluster=self._cluster,
            stamp=stamp,
            observed_at_s=now_s,
            labels=dict(self._labels),
            properties=properties,
            nodes=nodes,
            gpus=gpus,
            counted_as=self._quota_names.now(),
            job_kinds=tuple(kind.name for kind in KINDS if self._is_made(kind)),
            uid=self._uid,
            unlisted=tuple(self._unlisted[name] for name in sorted(self._unlisted)),
        )
