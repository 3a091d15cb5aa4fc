"""The scores and properties on the hub, and the writes. Pure.

Inputs are facts, objects and results of writes. ``act`` returns the writes for now, and
``wake_at_s`` the time of the next call. A change alone triggers no write: each object is compared
with its wanted state. So a new leader, or a restarted service, writes nothing that is already
there.

Every cluster of Open Cluster Management gets an AddOnPlacementScore, even without a report. OCM
counts a missing score as 0, which beats healthy clusters. A ClusterProfile gets properties only if
both its spec and its label name this manager. A profile by Berthmaster is deleted as soon as OCM
would create one. Only a cluster's own silence makes its scores the worst. While the reporting
service is silent, the scores stay (telling.py).

The hub's clock decides how long a score is valid, and the local clock may differ by more than that
validity. The API server's time of a stored write shows the difference.
"""

from enum import Enum
from math import inf
from typing import Final

from berthmaster.hub.ocm.core import placed, profiles, scores
from berthmaster.hub.ocm.core.instructions import (
    KINDS,
    PROFILE,
    SCORE,
    CreateScore,
    DeleteProfile,
    Instruction,
    Write,
)
from berthmaster.hub.ocm.core.objects import PlacementScore, SetBinding, written_at_s
from berthmaster.hub.ocm.core.policy import OcmPolicy
from berthmaster.lib.kube.controller.aside import SetAside
from berthmaster.lib.kube.controller.shell_contract import Answer, Outcome
from berthmaster.lib.kube.managed_clusters import ManagedCluster
from berthmaster.lib.kube.multicluster import ClusterProfile
from berthmaster.lib.kube.objects import Object
from berthmaster.lib.kube.resources import MANAGED_CLUSTERS
from berthmaster.lib.messages.fleet import ClusterScore
from berthmaster.lib.ocm.core.kept_objects import KeptObject, KeptObjects, Key, Look
from berthmaster.lib.ocm.core.ownership import warning
from berthmaster.lib.ocm.core.telling import Tellers, Telling
from berthmaster.lib.ocm.core.view import View

CLOCKS_AGREE_S: Final = 5.0  # the server's times are whole seconds, and responses take time
TOLD_AFTER: Final = 2  # failures in a row: the first may be a cluster during import
Ours = PlacementScore | ClusterProfile


class OcmKind(Enum):
    """The kinds watched on the hub."""

    MANAGED = "managedclusters"
    SCORES = "addonplacementscores"
    PROFILES = "clusterprofiles"
    BINDINGS = "managedclustersetbindings"  # in the namespace for new profiles


class Hub:
    def __init__(self, policy: OcmPolicy) -> None:
        self.policy = policy
        self.targets: KeptObjects[Ours, Write] = KeptObjects(policy.rules, KINDS)
        self.since_s = inf  # time since which scores are received
        self.blind = False  # True while the bus is unreachable
        self.ahead_s = 0.0  # hub's clock minus local clock
        self.managed: dict[str, ManagedCluster] = {}
        self.models: tuple[str, ...] = ()  # models of the fleet, never forgotten
        self.problems: dict[str, str] = {}  # cluster -> reason for a missing profile
        self._told: dict[str, Telling] = {}
        self._versions: dict[str, str] = {}
        self._tellers = Tellers(policy.silent_after_s)
        self._placed: dict[Key, PlacementScore] = {}
        self._profiles: dict[str, set[str]] = {}  # cluster -> namespaces with its profile
        self._bound: dict[str, set[str]] = {}  # namespace -> bindings of sets
        self._listed: set[OcmKind] = set()
        self._absent: set[OcmKind] = set()

    @property
    def aside(self) -> SetAside:
        """Return the objects that were skipped with an error."""
        return self.targets.aside

    def begin(self) -> None:
        """Start writing. The hub and the bus are the only state."""

    # ---- inputs

    def listen(self, now_s: float, *, blind: bool) -> None:
        """Note whether scores arrive from now on, or the bus is unreachable."""
        if self.blind != blind or now_s < self.since_s:
            self.blind = blind
            self.since_s = min(self.since_s, now_s)
            self.targets.touch(list(self.targets.all))

    def on_score(self, score: ClusterScore, stored_at_s: float) -> None:
        cluster = score.cluster
        told = self._told.get(cluster)
        if told is None:
            told = self._told[cluster] = Telling(self.policy.silent_after_s)
        told.on_score(score, stored_at_s)
        back = self._tellers.on_score(stored_at_s)
        found = sorted({*self.models, *scores.models((score,))})[: scores.MAX_MODELS]
        if back or tuple(found) != self.models:
            self.models = tuple(found)
            self.targets.touch(list(self.targets.all))
        self._wish_for_profile(cluster)
        self._touch(cluster)

    def on_version(self, cluster: str, version: str) -> None:
        """Apply the Kubernetes version that the cluster's agent reports; "" = not reported."""
        if version and self._versions.get(cluster) != version:
            self._versions[cluster] = version
            self._touch(cluster)

    def on_gone(self, cluster: str) -> None:
        """Apply the removal of a cluster's score from the bus."""
        if (told := self._told.get(cluster)) is not None:
            told.on_gone()
        self._touch(cluster)

    def on_object(self, thing: Object, *, gone: bool) -> None:
        """Apply an object from the hub's watches."""
        match thing:
            case ManagedCluster():
                self._on_managed(thing, gone)
            case PlacementScore():
                self._on_placed(thing, gone)
            case ClusterProfile():
                self._on_profile(thing, gone)
            case SetBinding():
                self._on_binding(thing, gone)
            case _:
                raise TypeError(f"{type(thing).__name__} is nothing that is watched on a hub")

    def _on_managed(self, cluster: ManagedCluster, gone: bool) -> None:
        name = cluster.metadata.name
        key = self.score_key(name)
        if gone:
            self.managed.pop(name, None)
        else:
            self.managed[name] = cluster
        leaves = gone or cluster.metadata.deletion_timestamp is not None
        if leaves or not cluster.spec.hub_accepts_client:
            self.targets.drop(key)  # its namespace is missing, or soon deleted
        elif key not in self.targets.all:
            self.targets.target(key).saw(self._placed.get(key))
        self._forget_wish(name)
        self._wish_for_profile(name)
        self.targets.touch([(PROFILE, home, name) for home in self._profiles.get(name, ())])

    def _on_binding(self, binding: SetBinding, gone: bool) -> None:
        home = binding.metadata.namespace
        bound = self._bound.setdefault(home, set())
        (bound.discard if gone else bound.add)(binding.metadata.name)
        for cluster in list(self._told):
            self._forget_wish(cluster)
            self._wish_for_profile(cluster)
        self.targets.touch([key for key in self.targets.all if key[:2] == (PROFILE, home)])

    def _on_placed(self, thing: PlacementScore, gone: bool) -> None:
        key = (SCORE, thing.metadata.namespace, thing.metadata.name)
        if gone:
            self._placed.pop(key, None)
        else:
            self._placed[key] = thing
        self._saw(key, None if gone else thing)

    def _on_profile(self, thing: ClusterProfile, gone: bool) -> None:
        name, home = thing.metadata.name, thing.metadata.namespace
        key = (PROFILE, home, name)
        homes = self._profiles.setdefault(name, set())
        if not gone:
            homes.add(home)
        else:
            homes.discard(home)
            if not homes:
                del self._profiles[name]
        if gone or not profiles.names_us(thing, self.policy.manager):
            self.targets.drop(key)
        else:
            self.targets.target(key)
            self._saw(key, thing)
        self._forget_wish(name)
        self._wish_for_profile(name)

    def _saw(self, key: Key, thing: Ours | None) -> None:
        target = self.targets.all.get(key)
        if target is not None and target.saw(thing):
            target.due_s = -inf

    def on_listed(self, plural: str) -> None:
        kind = OcmKind(plural)
        if kind not in self._listed:
            self._listed.add(kind)
            self._absent.discard(kind)
            self._look_at_all()

    def on_absent(self, plural: str) -> None:
        """Drop all objects of a kind that the hub does not serve."""
        kind = OcmKind(plural)
        if kind in self._absent:
            return
        self._absent.add(kind)
        self._listed.discard(kind)
        if kind is OcmKind.MANAGED:
            for managed in list(self.managed.values()):
                self._on_managed(managed, gone=True)
        elif kind is OcmKind.SCORES:
            self._placed.clear()
            for key, target in self.targets.all.items():
                if key[0] == SCORE:
                    target.thing = None
        elif kind is OcmKind.BINDINGS:
            self._bound.clear()
        else:
            self._profiles.clear()
            for key in [key for key in self.targets.all if key[0] == PROFILE]:
                self.targets.drop(key)
        self._look_at_all()

    def on_answer(self, write: Write, answer: Answer, now_s: float) -> list[Instruction]:
        """Apply the result of a write, and return events."""
        target = self.targets.answered(write, answer, now_s)
        if target is None:
            return []
        if isinstance(write, DeleteProfile):
            return self._left(write, target, answer)
        if answer.done and isinstance(target.thing, PlacementScore):
            self._compare_clocks(target.thing, now_s)
            target.told, told = placed.news(target.thing, target.told)
            return told
        managed = self.managed.get(write.key[1])
        missing = answer.outcome is Outcome.GONE and isinstance(write, CreateScore)
        if missing and managed is not None:
            target.trouble = f"namespace {write.key[1]} is not there: the cluster is not imported"
            if target.pace.failures == TOLD_AFTER:
                return [warning(MANAGED_CLUSTERS, managed, "NamespaceMissing", target.trouble)]
        return []

    def _left(
        self, write: DeleteProfile, target: KeptObject[Ours], answer: Answer
    ) -> list[Instruction]:
        if not answer.done or not isinstance(target.thing, ClusterProfile):
            return []
        told = profiles.left(target.thing, write.why)
        self._on_profile(target.thing, gone=True)
        return [told]

    def _compare_clocks(self, stored: PlacementScore, now_s: float) -> None:
        at_s = written_at_s(stored)
        if at_s and abs(at_s - now_s - self.ahead_s) > CLOCKS_AGREE_S:
            self.ahead_s = at_s - now_s if abs(at_s - now_s) > CLOCKS_AGREE_S else 0.0
            self.targets.touch(list(self.targets.all))

    # ---- outputs

    def wake_at_s(self) -> float:
        """Return the time of the next call of ``act`` without an input."""
        return self.targets.next_due_s()

    def act(self, now_s: float) -> list[Instruction]:
        """Return the writes and events for now."""
        return self.targets.act(self._look, now_s)

    def _look(self, target: KeptObject[Ours], now_s: float) -> tuple[Look[Write] | None, float]:
        """Return (the comparison of an object or None for nothing to do, time limit of that
        result)."""
        kind, home, name = target.key
        policy = self.policy
        needed = {OcmKind.MANAGED, OcmKind.SCORES} if kind == SCORE else {OcmKind.PROFILES}
        if not needed <= self._listed:
            return None, inf
        cluster = home if kind == SCORE else name
        why = self._ocm_makes(home, cluster) if kind == PROFILE else ""
        if why and not isinstance(target.thing, ClusterProfile):
            return None, inf
        if why and profiles.made_by_us(target.thing, policy.manager):
            return profiles.leaving(target.key, target.thing, why), inf
        view, until_s = self.view(cluster, now_s)
        if view is None:
            return None, until_s
        if kind == PROFILE:
            found = profiles.look(
                target.key,
                target.thing,
                view,
                policy.manager,
                policy.rules,
                version=self._versions.get(cluster, ""),
                now_s=now_s,
            )
            return found, until_s
        left_alone = target.thing is None or not view.silence
        if view.reason == "NoReport" and not policy.unreported and left_alone:
            return None, until_s
        heard_s = self._heard_s(cluster)
        found = placed.look(
            target.key,
            target.thing,
            view,
            self.models,
            policy.rules,
            told_at_s=heard_s if heard_s > -inf else None,
            now_s=now_s + self.ahead_s,
        )
        return found._replace(renew_at_s=found.renew_at_s - self.ahead_s), until_s

    def view(self, cluster: str, now_s: float) -> tuple[View | None, float]:
        """Return (view of a cluster or None while waiting, time limit of that result)."""
        told = self._told.get(cluster)
        if told is not None and told.score is not None:
            return told.view(now_s)
        heard_s = self._heard_s(cluster)
        wait_until_s = (heard_s if heard_s > -inf else self.since_s) + self.policy.silent_after_s
        if now_s < wait_until_s:
            return None, wait_until_s
        return self._tellers.unheard(now_s, blind=self.blind)

    def _heard_s(self, cluster: str) -> float:
        """Return the time of the last score; negative infinity = never."""
        told = self._told.get(cluster)
        return told.heard_s if told is not None else -inf

    def score_key(self, cluster: str) -> Key:
        return (SCORE, cluster, self.policy.score_name)

    # ---- profiles for unmanaged clusters

    def _wish_for_profile(self, cluster: str) -> None:
        """Request a profile for a reporting, unmanaged cluster, if the setting allows."""
        home = self.policy.create_profiles_in
        told = self._told.get(cluster)
        score = told.score if told is not None else None
        if not home or score is None or not self._is_nobodys(cluster):
            return
        if not profiles.nameable(cluster):
            self.problems[cluster] = "its name cannot be that of a ClusterProfile"
        elif score.freshness != "withdrawn":
            self.targets.target((PROFILE, home, cluster))

    def _is_nobodys(self, cluster: str) -> bool:
        certain = self._listed | self._absent
        known = OcmKind.PROFILES in self._listed and {OcmKind.MANAGED, OcmKind.BINDINGS} <= certain
        home = self.policy.create_profiles_in
        return known and cluster not in self._profiles and not self._ocm_makes(home, cluster)

    def _ocm_makes(self, home: str, cluster: str) -> str:
        """Return why Open Cluster Management creates a profile of the cluster there, or ""."""
        if cluster in self.managed:
            return f"Open Cluster Management has a ManagedCluster {cluster}"
        if bound := self._bound.get(home):
            return f"namespace {home} is bound to the ManagedClusterSet {min(bound)}"
        return ""

    def _forget_wish(self, cluster: str) -> None:
        key = (PROFILE, self.policy.create_profiles_in, cluster)
        target = self.targets.all.get(key)
        if target is not None and target.thing is None and not self._is_nobodys(cluster):
            self.targets.drop(key)

    # ---- all objects

    def _touch(self, cluster: str) -> None:
        homes = {*self._profiles.get(cluster, ()), self.policy.create_profiles_in}
        self.targets.touch([self.score_key(cluster), *((PROFILE, home, cluster) for home in homes)])

    def _look_at_all(self) -> None:
        for cluster in list(self._told):
            self._wish_for_profile(cluster)
        self.targets.touch(list(self.targets.all))
