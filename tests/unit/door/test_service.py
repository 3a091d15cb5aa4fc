"""What a door answers while the bus does not do what it asks for."""

from typing import Any, cast

import pytest

from berthmaster.bus.connection import Connection
from berthmaster.bus.errors import TooLarge
from berthmaster.bus.grouped import GroupedAppends
from berthmaster.bus.joining import Heard
from berthmaster.door.core import unavailable
from berthmaster.door.recovery import BringBack, Losses
from berthmaster.door.service import Shell
from berthmaster.door.settings import DoorSettings
from berthmaster.logcheck.core import Loss
from berthmaster.messages.door import StoryReply, StoryRequest
from berthmaster.messages.workload import Recovered
from berthmaster.runtime.health import Health
from berthmaster.runtime.metrics import Metrics
from berthmaster.runtime.service import Context
from tests.bus.tools import story
from tests.support.lives import CLUSTER, ID, TENANT, fitting, new
from tests.unit.door.test_recovery import LOG, receipt
from tests.unit.kubernetes.stage import Lines


class Line:
    """A connection on which nothing can be stored."""

    def __init__(self) -> None:
        self.log = Lines()
        self.parts: dict[type, object] = {}

    def when_stored(self, _: object) -> None:
        pass

    def now(self) -> float:
        return 1000.0


@story
async def test_unstorable_recovery_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuses(*_: object, **__: object) -> None:
        raise TooLarge("1048577 bytes, the server takes 1048576")

    async def verdict(*_: object) -> BringBack:
        event = fitting(Recovered, new())
        assert isinstance(event, Recovered)
        return BringBack(event)

    monkeypatch.setattr(GroupedAppends, "append", refuses)
    monkeypatch.setattr(Shell, "_judged_receipt", verdict)
    ctx = Context(
        "door", DoorSettings(), log=cast("Any", Lines()), metrics=Metrics("door"), health=Health()
    )
    door = Shell(ctx, cast("Connection", Line()), cast("Heard", None))
    door._losses = Losses((Loss(LOG, 1000.0, 0),))
    door._core.receipts.log = LOG
    request = StoryRequest(
        tenant=TENANT, id=ID, receipt=door._core.receipts.signed(receipt()), executor="e"
    )
    answer = await door._bring_back(CLUSTER, request, StoryReply())
    assert answer == unavailable("1048577 bytes, the server takes 1048576")
