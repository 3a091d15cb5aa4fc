"""The worker's side: what a managed cluster claims of itself, as ClusterClaims in it. Pure.

Open Cluster Management copies claims into the ManagedCluster on the hub, where a Placement selects
by them. That copy is a write on the hub, so all but what becomes nothing, or something again, has
time. A claim of one of our names that somebody else has made stays as it is. So do ours while
nobody tells the cluster's score: Placements select by them, and our silence must move nobody.
"""

from math import inf
from typing import Final

from msgspec.structs import replace

from berthmaster.hub.ocm.core import properties, scores
from berthmaster.hub.ocm.core.instructions import (
    CLAIM,
    CreateClaim,
    Instruction,
    Key,
    Look,
    Write,
    WriteClaim,
)
from berthmaster.hub.ocm.core.kept_objects import KeptObject, KeptObjects
from berthmaster.hub.ocm.core.objects import ClusterClaim, foreign
from berthmaster.hub.ocm.core.pace import LARGE, SMALL
from berthmaster.hub.ocm.core.placed import warning
from berthmaster.hub.ocm.core.policy import OcmPolicy
from berthmaster.hub.ocm.core.scores import View
from berthmaster.hub.ocm.core.telling import Telling
from berthmaster.lib.kube.controller.aside import SetAside
from berthmaster.lib.kube.controller.shell_contract import Answer
from berthmaster.lib.kube.objects import Object
from berthmaster.lib.kube.resources import CLUSTER_CLAIMS
from berthmaster.lib.messages.fleet import ClusterScore

UNTOLD: Final = "no score of this cluster is told"
NAMES: Final = tuple(sorted(properties.claims(View("", ""))))


class Claims:
    def __init__(self, cluster: str, policy: OcmPolicy) -> None:
        self.cluster = cluster
        self.policy = policy
        self.targets: KeptObjects[ClusterClaim] = KeptObjects(
            # Claims are not renewed: the smallest difference is written in the end.
            replace(policy.rules, points=2 * SMALL, refill_s=policy.rules.settle_s)
        )
        self.since_s = inf
        self._told = Telling(policy.silent_after_s)
        self._listed = False
        for name in NAMES:
            self.targets.target(_key(name))

    @property
    def aside(self) -> SetAside:
        """What it could not handle."""
        return self.targets.aside

    def begin(self) -> None:
        """This replica writes from now on; what it knows is what the cluster and the bus show."""

    # ---- what comes in

    def listen(self, now_s: float, *, blind: bool) -> None:
        """Scores that are told from now on are heard; without the bus nothing is claimed anew."""
        if now_s < self.since_s:
            self.since_s = now_s
            self._touch()

    def on_score(self, score: ClusterScore, stored_at_s: float) -> None:
        if score.cluster == self.cluster:
            self._told.on_score(score, stored_at_s)
            self._touch()

    def on_gone(self, cluster: str) -> None:
        """The bus has no score of the cluster any more."""
        if cluster == self.cluster:
            self._told.on_gone()
            self._touch()

    def on_object(self, thing: Object, *, gone: bool) -> None:
        """A claim in the cluster, ours or not."""
        assert isinstance(thing, ClusterClaim)
        target = self.targets.all.get(_key(thing.metadata.name))
        if target is not None and target.saw(None if gone else thing):
            target.due_s = -inf

    def on_listed(self, plural: str) -> None:
        if not self._listed:
            self._listed = True
            self._touch()

    def on_absent(self, plural: str) -> None:
        """The cluster serves no claims (any more): nobody manages it."""
        if self._listed:
            self._listed = False
            for target in self.targets.all.values():
                target.thing = None

    def on_answer(self, write: Write, answer: Answer, now_s: float) -> list[Instruction]:
        self.targets.answered(write, answer, now_s)
        return []

    # ---- what goes out

    def wake_at_s(self) -> float:
        """When to ask ``act`` again, unless something comes in before."""
        return self.targets.next_due_s()

    def act(self, now_s: float) -> list[Instruction]:
        """What to write and to tell now."""
        return self.targets.act(self._look, now_s)

    def _look(self, target: KeptObject[ClusterClaim], now_s: float) -> tuple[Look | None, float]:
        view, until_s = self.view(now_s)
        if view is None or not self._listed:
            return None, until_s
        if view.silence and target.thing is not None and not foreign(target.thing):
            target.trouble = f"it stays as it was: {view.silence}"
            return None, until_s
        target.trouble = ""
        return self._compare(target, properties.claims(_said(view))[target.key[2]]), until_s

    def _compare(self, target: KeptObject[ClusterClaim], value: str) -> Look:
        thing = target.thing
        if thing is None:
            return Look(LARGE, inf, CreateClaim(target.key, value))
        if why := foreign(thing):
            return Look(0.0, inf, None, warning(CLUSTER_CLAIMS, thing, "NotOurs", why))
        version = thing.metadata.resource_version
        write = WriteClaim(key=target.key, resource_version=version, value=value)
        return Look(properties.claim_gap(thing.spec.value, value), inf, write)

    def view(self, now_s: float) -> tuple[View | None, float]:
        """(what to say, or None while there is still time; until when that holds)."""
        if self._told.score is not None:
            return self._told.view(now_s)
        wait_until_s = max(self._told.heard_s, self.since_s) + self.policy.silent_after_s
        if now_s < wait_until_s:
            return None, wait_until_s
        return replace(scores.view(None, silent_s=self.policy.silent_after_s), silence=UNTOLD), inf

    def _touch(self) -> None:
        self.targets.touch(list(self.targets.all))


def _said(view: View) -> View:
    """Of a claim that is to be made, what was told last counts, too."""
    return replace(view, score=view.last) if view.last is not None else view


def _key(name: str) -> Key:
    return (CLAIM, "", name)
