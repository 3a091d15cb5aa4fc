"""A Job that its worker may delete before the hub reads its end is named before that happens."""

import msgspec
import pytest

from berthmaster.lib.kueue.jobs import JobSpec
from berthmaster.lib.kueue.names import MULTIKUEUE
from tests.unit.hub.multikueue.hub_objects import job, workload
from tests.unit.hub.multikueue.world import World

WORDS = "its Job has ttlSecondsAfterFinished: 0, which Kueue copies: a worker may delete"


def submitted(mode: str, ttl_s: int | None) -> World:
    world = World(mode)
    world.all_workers()
    world.begin()
    spec = JobSpec(managed_by=MULTIKUEUE, ttl_seconds_after_finished=ttl_s)
    world.put(msgspec.structs.replace(job("train"), spec=spec))
    world.put(workload("train"))
    world.settle()
    world.reserve()
    world.wait(2.0)
    return world


@pytest.mark.parametrize("mode", ["dispatch", "observe"])
@pytest.mark.parametrize("ttl_s", [0, 900, None])
def test_it_is_an_event_once_and_a_hint(mode: str, ttl_s: int | None) -> None:
    world = submitted(mode, ttl_s)
    risk = ttl_s == 0
    reply = world.core.why("acme", world.name().partition("/")[2], world.now_s)
    assert reply is not None
    assert [hint for hint in reply.hints if hint.startswith(WORDS)] == list(reply.hints)[
        : int(risk)
    ]
    notes = [event for event in world.told if event.reason == "EndMayBeLost"]
    assert len(notes) == int(risk and mode != "observe")  # observe writes nothing to the hub
    assert all(event.warning and event.note.startswith(WORDS) for event in notes)
