"""Drives the door's core as its shell does: it folds the log, hands each cluster what concerns it,
with receipts, and lets through what an executor may store."""

from collections.abc import Callable
from typing import Final

from berthmaster.control.door.core.bounds import Limits
from berthmaster.control.door.core.door import Door
from berthmaster.control.door.core.log_view import Behind, Settle, Store
from berthmaster.control.door.core.receipts import tells_of_end
from berthmaster.lib.door_client.raw_replies import RawTake
from berthmaster.lib.lifecycle.instructions import Outcome, Refused, Unknown
from berthmaster.lib.lifecycle.states import HELD, State
from berthmaster.lib.lifecycle.workload import key
from berthmaster.lib.messages.door import ExecutorEvent, StoryReply, StoryRequest, TakeRequest
from berthmaster.lib.messages.workload import WorkloadEvent
from tests.simulation.bus import Bus, Follower, Message, raw, recorded
from tests.simulation.clockwork import Process
from tests.simulation.logguard import LogGuard

NAME: Final = "door"
Answer = Callable[[RawTake | None], None]


class Doorway(Process):
    """One door, that never dies."""

    def __init__(self, bus: Bus) -> None:
        super().__init__(bus.clock, NAME)
        self.bus = bus
        self.core = Door(Limits(), b"the door's own")
        self._ready = False
        self._log: Follower | None = None
        self._polls: dict[str, tuple[TakeRequest, Answer]] = {}

    def boot(self) -> None:
        self.guard = LogGuard(self.bus, self, NAME, replaced=self._replaced)
        self.guard.begin(self._follow)

    def _replaced(self) -> None:
        if self._log is not None:
            self._log.close()
        self._ready = False
        self.core.log_replaced()
        self.guard.begin(self._follow)

    def _follow(self) -> None:
        self._log = Follower(self.bus, self.bus.log, self, self._on_log, self._caught_up)

    def _on_log(self, message: Message) -> None:
        self.guard.saw(message)
        subject, data = raw(message)
        cluster = self.core.log.take(subject, message.sequence, message.stored_at_s, data)
        if cluster and self._ready:
            self._stir(cluster)

    def _caught_up(self) -> None:
        self.core.log_name = self.core.receipts.log = self.bus.incarnation
        self.core.log.caught_up()
        self._ready = True
        for cluster in sorted(self._polls):
            self._stir(cluster)

    def _stir(self, cluster: str) -> None:
        if cluster in self._polls:
            self.take(cluster, *self._polls.pop(cluster))

    # What executors ask

    def take(self, cluster: str, request: TakeRequest, answer: Answer) -> None:
        """What concerns a cluster beyond its cursor: once there is something. None: ask again."""
        if self.cut or not self._ready:
            answer(None)
        elif (reply := self.core.take(cluster, request)) is not None:
            answer(reply)
        else:
            self._polls[cluster] = request, answer

    def refuses(self, cluster: str, event: WorkloadEvent) -> Outcome | None:
        """What becomes of an executor's event; None: it is stored if its guard holds."""
        if self.cut or not self._ready or not self.guard.sound:
            return Unknown("the log is not known to be what it was")
        assert isinstance(event, ExecutorEvent)
        match self.core.log.check(cluster, event, again=False):
            case Store():
                return None
            case Behind() | Settle():
                return Unknown("the log has not been read so far")
            case _:
                return Refused(None)

    def story(self, cluster: str, request: StoryRequest) -> StoryReply | None:
        """How a workload stands; None: ask again."""
        if self.cut or not self._ready or not self.guard.sound:
            return None
        found = self.core.story(cluster, request)
        story = self.bus.stories.get(key(request.tenant, request.id), ())
        work = found.workload if found is not None else None
        if work is not None and not request.receipt and State(work.state) in HELD:
            return found if not story or story[-1].sequence <= work.sequence else None
        held = self.core.receipts.opened(request.receipt) if request.receipt else None
        if found is None or held is None or found.workload is not None or found.failed:
            return found
        if (held.cluster, held.tenant, held.id) != (cluster, request.tenant, request.id):
            return found
        known = [*story, *self.bus.archive.get(key(request.tenant, request.id), ())]
        return found if tells_of_end(held, recorded(known)) else None
