"""A hub, a clock and a server that does what it is told, for stories of the hub's side."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from berthmaster.hub.ocm.core.hub import Hub, OcmKind
from berthmaster.hub.ocm.core.instructions import (
    CreateProfile,
    CreateScore,
    DeleteProfile,
    Instruction,
    Write,
    WriteProperties,
    WriteScore,
)
from berthmaster.hub.ocm.core.objects import PlacementScore
from berthmaster.hub.ocm.core.policy import OcmPolicy
from berthmaster.lib.kube.controller.shell_contract import Answer, KubeEvent
from berthmaster.lib.kube.objects import Condition, Object, seconds
from berthmaster.lib.ocm.core.kept_objects import Key
from berthmaster.lib.ocm.core.ownership import MANAGED_BY, OURS
from berthmaster.lib.ocm.core.pace import Rules
from tests.unit.hub.ocm.builders import NAME, T0_S, managed, placed, profile, score

EAST: Final[Key] = ("score", "east", NAME)
T4: Final = "gpuGang-Tesla-T4"
RULES: Final = Rules(settle_s=30.0, burst=6.0, refill_s=10.0, validity_s=300.0)


class Story:
    """A hub that is listed, a clock, and a server that does what it is told."""

    def __init__(self, **policy: Any) -> None:
        self.hub = Hub(OcmPolicy(rules=RULES, silent_after_s=30.0, **policy))
        self.now_s = T0_S
        self.version = 100
        self.written: dict[Key, Object] = {}
        self.ahead_s = 0.0  # the server's clock before ours
        self.hub.listen(self.now_s, blind=False)
        for kind in OcmKind:
            self.hub.on_listed(kind.value)

    def act(self, after_s: float = 0.0) -> list[Instruction]:
        self.now_s += after_s
        return self.hub.act(self.now_s)

    def tell(self, cluster: str = "east", **rest: Any) -> None:
        self.hub.on_score(score(cluster, **rest), self.now_s)

    def sees(self, thing: Object, *, gone: bool = False) -> None:
        self.hub.on_object(thing, gone=gone)

    def stored(self, write: Write) -> list[Instruction]:
        self.version += 1
        thing: Object
        match write:
            case CreateScore(key):
                thing = placed(
                    key[1], version=self.version, name=key[2], stored_s=self.now_s + self.ahead_s
                )
            case WriteScore():
                thing = self.shows(write, self.version, self.now_s + self.ahead_s)
            case CreateProfile(key):
                thing = profile(key[2], namespace=key[1], version=self.version, made=True)
            case DeleteProfile():
                gone = self.written.pop(write.key)
                told = self.hub.on_answer(write, Answer(), self.now_s)
                self.sees(gone, gone=True)
                return told
            case WriteProperties():
                listed = {one["name"]: one["value"] for one in write.properties}
                _, namespace, name = write.key
                thing = profile(
                    name,
                    listed,
                    namespace=namespace,
                    version=self.version,
                    at_s=self.now_s,
                    kubernetes=write.version,
                    conditions=msgspec.convert(write.conditions, list[Condition]),
                    made=(before := self.written.get(write.key)) is not None
                    and before.metadata.labels.get(MANAGED_BY) == OURS,
                )
            case _:
                raise AssertionError(write)
        told = self.hub.on_answer(write, Answer(found=thing), self.now_s)
        self.written[write.key] = thing
        self.sees(thing)  # the watch comes after the answer
        return told

    @staticmethod
    def shows(write: WriteScore, version: int, stored_s: float | None = None) -> PlacementScore:
        _, namespace, name = write.key
        return placed(
            namespace,
            write.scores,
            version=version,
            until_s=seconds(write.valid_until),
            reason=write.reason,
            message=write.message,
            name=name,
            since_s=seconds(write.since),
            stored_s=stored_s,
        )

    def settle(self, limit: int = 20) -> list[Instruction]:
        """Everything that is due now is done; what that was."""
        told: list[Instruction] = []
        for _ in range(limit):
            asked = self.act()
            if not asked:
                return told
            for each in asked:
                told.append(each)
                if not isinstance(each, KubeEvent):
                    told += self.stored(each)
        raise AssertionError(f"it does not come to rest: {told[-3:]}")


def the_write(asked: Sequence[Instruction]) -> WriteScore:
    [write] = asked
    assert isinstance(write, WriteScore)
    return write


def the_scores(story: Story) -> dict[str, int]:
    thing = story.hub.targets.all[EAST].thing
    assert isinstance(thing, PlacementScore)
    return {one.name: one.value for one in thing.status.scores}


def reported(**rest: Any) -> Story:
    """A story in which one cluster's scores stand."""
    story = Story()
    story.sees(managed("east"))
    story.tell(**rest)
    story.settle()
    return story
