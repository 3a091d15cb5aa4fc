"""Which scores and properties stand on the hub, and what is to be written. Pure.

Facts and objects come in, what became of writes too; ``act`` says what to write now, ``wake_at_s``
when to ask again. Nothing is written on a change as such: an object is compared with what it should
be, so that whoever takes over, or starts anew, writes nothing that stands there already.

A cluster of Open Cluster Management gets an AddOnPlacementScore, reported or not: one without
counts as 0 there, which beats healthy clusters. A ClusterProfile gets properties only if it names
us as its manager, in its spec and in its label; one that we have made goes as soon as Open Cluster
Management would make it. Only a cluster's own silence makes its scores the
worst; while whoever tells them is silent, what stands stays (telling.py).

How long a score counts is judged by the hub's clock, and ours may be wrong by more than a score's
validity. What the API server says of when it stored our own write tells the difference.
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
from berthmaster.hub.ocm.core.objects import (
    ClusterProfile,
    ManagedCluster,
    PlacementScore,
    SetBinding,
    written_at_s,
)
from berthmaster.hub.ocm.core.policy import OcmPolicy
from berthmaster.lib.kube.controller.aside import SetAside
from berthmaster.lib.kube.controller.shell_contract import Answer, Outcome
from berthmaster.lib.kube.objects import Object
from berthmaster.lib.kube.resources import MANAGED_CLUSTERS
from berthmaster.lib.messages.fleet import ClusterScore
from berthmaster.lib.ocm.core.kept_objects import KeptObject, KeptObjects, Key, Look
from berthmaster.lib.ocm.core.ownership import warning
from berthmaster.lib.ocm.core.telling import Tellers, Telling
from berthmaster.lib.ocm.core.view import View

CLOCKS_AGREE_S: Final = 5.0  # the server's times are whole seconds, and answers take a while
TOLD_AFTER: Final = 2  # failures in a row: the first may be a cluster that is just being imported
Ours = PlacementScore | ClusterProfile


class OcmKind(Enum):
    """What is watched on the hub."""

    MANAGED = "managedclusters"
    SCORES = "addonplacementscores"
    PROFILES = "clusterprofiles"
    BINDINGS = "managedclustersetbindings"  # in the namespace in which profiles are made


class Hub:
    def __init__(self, policy: OcmPolicy) -> None:
        self.policy = policy
        self.targets: KeptObjects[Ours, Write] = KeptObjects(policy.rules, KINDS)
        self.since_s = inf  # since when scores are listened to
        self.blind = False  # the bus is away
        self.ahead_s = 0.0  # the hub's clock before ours
        self.managed: dict[str, ManagedCluster] = {}
        self.models: tuple[str, ...] = ()  # the fleet's; once known, never forgotten
        self.problems: dict[str, str] = {}  # cluster -> why it gets no profile
        self._told: dict[str, Telling] = {}
        self._versions: dict[str, str] = {}
        self._tellers = Tellers(policy.silent_after_s)
        self._placed: dict[Key, PlacementScore] = {}
        self._profiles: dict[str, set[str]] = {}  # cluster -> namespaces with a profile of it
        self._bound: dict[str, set[str]] = {}  # namespace -> bindings of sets
        self._listed: set[OcmKind] = set()
        self._absent: set[OcmKind] = set()

    @property
    def aside(self) -> SetAside:
        """What it could not handle."""
        return self.targets.aside

    def begin(self) -> None:
        """This replica writes from now on; what it knows is what the hub and the bus show."""

    # ---- what comes in

    def listen(self, now_s: float, *, blind: bool) -> None:
        """Scores that are told from now on are heard; or the bus is away, and none will be."""
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
        """The version of Kubernetes that the cluster's agent reports; "" = not reported."""
        if version and self._versions.get(cluster) != version:
            self._versions[cluster] = version
            self._touch(cluster)

    def on_gone(self, cluster: str) -> None:
        """The bus has no score of the cluster any more."""
        if (told := self._told.get(cluster)) is not None:
            told.on_gone()
        self._touch(cluster)

    def on_object(self, thing: Object, *, gone: bool) -> None:
        """What the hub's watches show."""
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
            self.targets.drop(key)  # its namespace is not there, or not for long
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
        """The hub serves no such kind (any more): what was known of it is void."""
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
        """What became of a write, and what people are told of it."""
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

    # ---- what goes out

    def wake_at_s(self) -> float:
        """When to ask ``act`` again, unless something comes in before."""
        return self.targets.next_due_s()

    def act(self, now_s: float) -> list[Instruction]:
        """What to write and to tell now."""
        return self.targets.act(self._look, now_s)

    def _look(self, target: KeptObject[Ours], now_s: float) -> tuple[Look[Write] | None, float]:
        """(the object beside what it should be, None for nothing to do; until when that holds)."""
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
        """(what to say of a cluster, or None while there is still time; until when that holds)."""
        told = self._told.get(cluster)
        if told is not None and told.score is not None:
            return told.view(now_s)
        heard_s = self._heard_s(cluster)
        wait_until_s = (heard_s if heard_s > -inf else self.since_s) + self.policy.silent_after_s
        if now_s < wait_until_s:
            return None, wait_until_s
        return self._tellers.unheard(now_s, blind=self.blind)

    def _heard_s(self, cluster: str) -> float:
        """When its score was told last; the past, if never."""
        told = self._told.get(cluster)
        return told.heard_s if told is not None else -inf

    def score_key(self, cluster: str) -> Key:
        return (SCORE, cluster, self.policy.score_name)

    # ---- profiles that nobody has made

    def _wish_for_profile(self, cluster: str) -> None:
        """A cluster that reports and that nobody manages gets a profile, where that is set."""
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
        """Why Open Cluster Management makes a profile of the cluster there, or ""."""
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

    # ---- all of them

    def _touch(self, cluster: str) -> None:
        homes = {*self._profiles.get(cluster, ()), self.policy.create_profiles_in}
        self.targets.touch([self.score_key(cluster), *((PROFILE, home, cluster) for home in homes)])

    def _look_at_all(self) -> None:
        for cluster in list(self._told):
            self._wish_for_profile(cluster)
        self.targets.touch(list(self.targets.all))
