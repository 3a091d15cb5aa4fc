"""The worker's side: what a managed cluster claims of itself, as ClusterClaims in it. Pure.

Open Cluster Management copies claims into the ManagedCluster on the hub, where a Placement selects
by them. That copy is a write on the hub, so all but what becomes nothing, or something again, has
time. A claim of one of our names that somebody else has made stays as it is.
"""

from math import inf
from typing import Final

import msgspec

from berthmaster.kubernetes.objects import Object
from berthmaster.messages.fleet import ClusterScore
from berthmaster.ocm import properties, scores
from berthmaster.ocm.desk import Desk, Target
from berthmaster.ocm.objects import ClusterClaim, foreign
from berthmaster.ocm.pace import LARGE, SMALL
from berthmaster.ocm.placed import warning
from berthmaster.ocm.scores import View
from berthmaster.ocm.settings import Policy
from berthmaster.ocm.words import CLAIM, CreateClaim, Done, Instruction, Key, Look, WriteClaim

NAMES: Final = tuple(sorted(properties.claims(View("", ""))))


class Claims:
    """One managed cluster."""

    def __init__(self, cluster: str, policy: Policy) -> None:
        self.cluster = cluster
        self.policy = policy
        self.desk: Desk[ClusterClaim] = Desk(
            # Claims are not renewed: the smallest difference is written in the end.
            msgspec.structs.replace(policy.rules, points=2 * SMALL, refill_s=policy.rules.settle_s)
        )
        self.since_s = inf
        self._score: ClusterScore | None = None
        self._seen_s = 0.0
        self._listed = False
        for name in NAMES:
            self.desk.target(_key(name))

    # ---- what comes in

    def listen(self, now_s: float, *, blind: bool) -> None:
        """Scores that are told from now on are heard; without the bus nothing is claimed anew."""
        if now_s < self.since_s:
            self.since_s = now_s
            self._touch()

    def on_score(self, score: ClusterScore, stored_at_s: float) -> None:
        """The cluster's score was told."""
        if score.cluster == self.cluster:
            self._score, self._seen_s = score, stored_at_s
            self._touch()

    def on_gone(self, cluster: str) -> None:
        """The bus has no score of the cluster any more."""
        if cluster == self.cluster:
            self._score = None
            self._touch()

    def on_object(self, thing: Object, *, gone: bool) -> None:
        """A claim in the cluster, ours or not."""
        assert isinstance(thing, ClusterClaim)
        target = self.desk.targets.get(_key(thing.metadata.name))
        if target is not None and target.saw(None if gone else thing):
            target.due_s = -inf

    def on_listed(self, plural: str) -> None:
        """Every claim is known."""
        if not self._listed:
            self._listed = True
            self._touch()

    def on_absent(self, plural: str) -> None:
        """The cluster serves no claims (any more): nobody manages it."""
        if self._listed:
            self._listed = False
            for target in self.desk.targets.values():
                target.thing = None

    def on_done(self, done: Done, now_s: float) -> list[Instruction]:
        """What became of a write."""
        self.desk.done(done, now_s)
        return []

    # ---- what goes out

    def wake_at_s(self) -> float:
        """When to ask ``act`` again, unless something comes in before."""
        return self.desk.next_due_s()

    def act(self, now_s: float) -> list[Instruction]:
        """What to write and to tell now."""
        view, until_s = self.view(now_s)
        wanted = properties.claims(view) if view is not None and self._listed else None
        told: list[Instruction] = []
        for target in self.desk.due(now_s):
            if self.desk.full:
                break
            found = self._look(target, wanted[target.key[2]]) if wanted is not None else None
            told += self.desk.decide(target, found, until_s, now_s)
        return told

    def _look(self, target: Target[ClusterClaim], value: str) -> Look:
        thing = target.thing
        if thing is None:
            return Look(LARGE, inf, CreateClaim(target.key, value))
        if why := foreign(thing):
            return Look(0.0, inf, None, warning("ClusterClaim", thing, "NotOurs", why))
        version = thing.metadata.resource_version
        write = WriteClaim(key=target.key, resource_version=version, value=value)
        return Look(properties.claim_gap(thing.spec.value, value), inf, write)

    def view(self, now_s: float) -> tuple[View | None, float]:
        """(what to say, or None while there is still time; until when that holds)."""
        heard_s = self._seen_s if self._score is not None else self.since_s
        limit_s = self.policy.silent_after_s
        if now_s < heard_s + limit_s:
            known = scores.view(self._score, silent_s=0) if self._score is not None else None
            return known, heard_s + limit_s
        return scores.view(self._score, silent_s=limit_s), inf

    def _touch(self) -> None:
        self.desk.touch(list(self.desk.targets))


def _key(name: str) -> Key:
    return (CLAIM, "", name)
