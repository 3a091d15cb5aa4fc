"""What a door answers about an attempt that it does not know."""

from collections.abc import Sequence
from typing import Any, cast

import pytest

from berthmaster.control.door import service
from berthmaster.control.door.core.receipts import tells_of_end
from berthmaster.control.door.service import Shell
from berthmaster.control.door.settings import DoorSettings
from berthmaster.lib.event_log.workload_log import EventLog
from berthmaster.lib.messages.api import RecordedEvent, Refusal
from berthmaster.lib.messages.door import PlacementReceipt, StoryReply, StoryRequest
from berthmaster.lib.messages.families import encode
from berthmaster.lib.messages.workload import (
    Cancelled,
    Carried,
    Claimed,
    Evicted,
    Placed,
    Running,
    State,
    Submitted,
    Succeeded,
    Withdrawn,
    WorkloadEvent,
)
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import NotConnected
from berthmaster.lib.nats.message_subjects import event_subject
from berthmaster.lib.nats.stream_connection import RequestConnections
from berthmaster.lib.nats.stream_messages import Message
from berthmaster.lib.runtime.health import Health
from berthmaster.lib.runtime.metrics import Metrics
from berthmaster.lib.runtime.service import Context
from tests.bus.tools import story
from tests.support.lives import CLAIMED, CLUSTER, DIGEST, ID, PODS, REQUEST, TENANT, fitting, lived
from tests.unit.lib.kube.stage import Lines

HELD = PlacementReceipt(
    tenant=TENANT,
    id=ID,
    cluster=CLUSTER,
    attempt=2,
    request=REQUEST,
    digest=DIGEST,
    pods=PODS,
    decision=1,
    sequence=20,
    submitted_sequence=10,
    placed_at_s=50.0,
)
RUNNING = lived(Submitted, Placed, Claimed, Running)


def of_second(kind: type[WorkloadEvent], **changes: Any) -> WorkloadEvent:
    return fitting(kind, RUNNING, **({"attempt": 2} | changes))


def carried(**changes: Any) -> WorkloadEvent:
    work = {name: getattr(CLAIMED, name) for name in type(CLAIMED).__struct_fields__} | changes
    head: dict[str, Any] = {"tenant": TENANT, "id": ID, "after": 0, "at_s": 0.0, "by": "test"}
    return Carried(**head, workload=type(CLAIMED)(**work))


@pytest.mark.parametrize(
    ("event", "at_s", "is_over"),
    [
        (of_second(Running), 60.0, False),
        (of_second(Claimed), 60.0, False),
        (of_second(Placed), 60.0, False),
        (of_second(Evicted), 60.0, True),
        (of_second(Withdrawn), 60.0, True),
        (of_second(Evicted, attempt=1), 60.0, False),
        (of_second(Placed, attempt=3), 60.0, True),
        (of_second(Succeeded), 60.0, True),
        (of_second(Cancelled, attempt=1), 60.0, True),
        (of_second(Succeeded), 40.0, False),  # of another job of that id, before
        (carried(attempt=1, state=State.QUEUED), 60.0, False),
        (carried(state=State.QUEUED), 60.0, True),  # it waits again
        (carried(attempt=3), 60.0, True),
    ],
)
def test_event_tells_of_the_end_of_an_attempt(
    event: WorkloadEvent, at_s: float, is_over: bool
) -> None:
    one = RecordedEvent(sequence=30, stored_at_s=at_s, event=event)
    assert tells_of_end(HELD, [one]) is is_over
    void = RecordedEvent(sequence=30, stored_at_s=at_s, event=event, void=True)
    assert not tells_of_end(HELD, [void])
    assert not tells_of_end(HELD, [])


class Line:
    """A connection that nothing goes through."""

    def __init__(self) -> None:
        self.log = Lines()
        self.parts: dict[type, object] = {}
        self.reconnects = 0

    def when_stored(self, _: object) -> None:
        pass

    def now(self) -> float:
        return 1000.0


class Doorway:
    """A door whose log and archive hold what a test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.logged: Sequence[WorkloadEvent] = ()
        self.archived: list[RecordedEvent] = []
        self.fails = False
        monkeypatch.setattr(EventLog, "story", self._story)
        monkeypatch.setattr(service, "archived_story", self._archived)
        ctx = Context(
            "door",
            DoorSettings(),
            log=cast("Any", Lines()),
            metrics=Metrics("door"),
            health=Health(),
        )
        self.shell = Shell(ctx, cast("Connection", Line()), cast("RequestConnections", None))

    async def _story(self, *_: object, **__: object) -> list[Message]:
        if self.fails:
            raise NotConnected("away")
        return [
            Message(event_subject(event), 10 * at, 60.0, encode(event))
            for at, event in enumerate(self.logged, 1)
        ]

    async def _archived(self, *_: object) -> list[RecordedEvent]:
        return self.archived

    async def asked(self, held: PlacementReceipt = HELD, cluster: str = CLUSTER) -> object:
        receipt = self.shell._core.receipts.signed(held)
        request = StoryRequest(tenant=TENANT, id=ID, receipt=receipt, executor="e")
        return await self.shell._unknown(cluster, request, StoryReply())


@story
async def test_attempt_that_the_log_lost_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    door = Doorway(monkeypatch)
    for logged in ((), (fitting(Submitted, lived()),), (of_second(Evicted, attempt=1),)):
        door.logged = logged
        answer = await door.asked()
        assert isinstance(answer, Refusal)
        assert answer.code == "unavailable"
        assert "runs on until `berth recover`" in answer.expected


@story
async def test_attempt_that_is_over_by_log_or_archive_is_not_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    door = Doorway(monkeypatch)
    over = of_second(Succeeded)
    door.logged = (over,)
    assert await door.asked() == StoryReply()
    door.logged, door.archived = (), [RecordedEvent(sequence=30, stored_at_s=60.0, event=over)]
    assert await door.asked() == StoryReply()


@story
async def test_receipt_of_another_attempt_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    door = Doorway(monkeypatch)
    assert await door.asked(cluster="c9") == StoryReply()
    request = StoryRequest(tenant=TENANT, id=ID, receipt="forged.x", executor="e")
    assert await door.shell._unknown(CLUSTER, request, StoryReply()) == StoryReply()


@story
async def test_attempt_is_kept_while_the_log_cannot_be_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    door = Doorway(monkeypatch)
    door.fails = True
    answer = await door.asked()
    assert isinstance(answer, Refusal)
    assert answer.code == "unavailable"
