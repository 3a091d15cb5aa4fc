"""ClusterClaims of a managed cluster. Pure.

Open Cluster Management copies claims to the ManagedCluster on the hub, where Placements select by
them. Each copy is a write on the hub, so only changes to or from nothing are immediate. A claim of
the same name by another party is left alone. Claims also stay while the cluster's score is missing,
because a silent scorer must not change placements.
"""

from math import inf
from typing import Final

from msgspec.structs import replace

from berthmaster.lib.kube.controller.aside import SetAside
from berthmaster.lib.kube.controller.shell_contract import Answer
from berthmaster.lib.kube.objects import Object
from berthmaster.lib.kube.resources import CLUSTER_CLAIMS
from berthmaster.lib.messages.fleet import ClusterScore
from berthmaster.lib.ocm.core.kept_objects import KeptObject, KeptObjects, Key, Look
from berthmaster.lib.ocm.core.ownership import foreign, warning
from berthmaster.lib.ocm.core.pace import LARGE, SMALL, Rules
from berthmaster.lib.ocm.core.telling import Telling
from berthmaster.lib.ocm.core.view import View, view
from berthmaster.worker.claims.core.instructions import (
    CLAIM,
    KINDS,
    CreateClaim,
    Instruction,
    Write,
    WriteClaim,
)
from berthmaster.worker.claims.core.objects import ClusterClaim
from berthmaster.worker.claims.core.values import gap, values

RULES: Final = Rules(settle_s=60.0, refill_s=60.0)  # each claim is a write on the hub too
UNTOLD: Final = "no score of this cluster is told"
NAMES: Final = tuple(sorted(values(View("", ""))))


class Claims:
    def __init__(self, cluster: str, rules: Rules, silent_after_s: float) -> None:
        self.cluster = cluster
        self._silent_after_s = silent_after_s
        self.targets: KeptObjects[ClusterClaim, Write] = KeptObjects(
            # Claims are not renewed: the smallest difference is written in the end.
            replace(rules, points=2 * SMALL, refill_s=rules.settle_s),
            KINDS,
        )
        self.since_s = inf
        self._told = Telling(silent_after_s)
        self._listed = False
        for name in NAMES:
            self.targets.target(_key(name))

    @property
    def aside(self) -> SetAside:
        return self.targets.aside

    def begin(self) -> None:
        """Start writing on this replica."""

    # ---- Input

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
        """Note that the cluster serves no claims: it is not managed."""
        if self._listed:
            self._listed = False
            for target in self.targets.all.values():
                target.thing = None

    def on_answer(self, write: Write, answer: Answer, now_s: float) -> list[Instruction]:
        self.targets.answered(write, answer, now_s)
        return []

    # ---- Output

    def wake_at_s(self) -> float:
        """When to ask ``act`` again, unless something comes in before."""
        return self.targets.next_due_s()

    def act(self, now_s: float) -> list[Instruction]:
        """Return the writes and events for now."""
        return self.targets.act(self._look, now_s)

    def _look(
        self, target: KeptObject[ClusterClaim], now_s: float
    ) -> tuple[Look[Write] | None, float]:
        said, until_s = self.view(now_s)
        if said is None or not self._listed:
            return None, until_s
        if said.silence and target.thing is not None and not foreign(target.thing):
            target.trouble = f"it stays as it was: {said.silence}"
            return None, until_s
        target.trouble = ""
        return self._compare(target, values(_last_told(said))[target.key[2]]), until_s

    def _compare(self, target: KeptObject[ClusterClaim], value: str) -> Look[Write]:
        thing = target.thing
        if thing is None:
            return Look(LARGE, inf, CreateClaim(target.key, value))
        if why := foreign(thing):
            return Look(0.0, inf, None, warning(CLUSTER_CLAIMS, thing, "NotOurs", why))
        version = thing.metadata.resource_version
        write = WriteClaim(key=target.key, resource_version=version, value=value)
        return Look(gap(thing.spec.value, value), inf, write)

    def view(self, now_s: float) -> tuple[View | None, float]:
        """Return what to claim, or None during the wait, and until when that holds."""
        if self._told.score is not None:
            return self._told.view(now_s)
        wait_until_s = max(self._told.heard_s, self.since_s) + self._silent_after_s
        if now_s < wait_until_s:
            return None, wait_until_s
        return replace(view(None, silent_s=self._silent_after_s), silence=UNTOLD), inf

    def _touch(self) -> None:
        self.targets.touch(list(self.targets.all))


def _last_told(said: View) -> View:
    """Return the last reported score for a claim to create."""
    return replace(said, score=said.last) if said.last is not None else said


def _key(name: str) -> Key:
    return (CLAIM, "", name)
