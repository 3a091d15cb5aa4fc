"""What the door does for executors where the log may be damaged: it tells nothing of what it is not
sure of, signs placements, and brings back what the log has lost of those that executors hold.

Its own core decides (door/recovery.py, door/receipts.py). In worlds without damage executors read
stories by themselves: what the door checks is then what the guards check.
"""

from typing import Final, NamedTuple

from berthmaster.door.receipts import Receipt, Receipts
from berthmaster.door.recovery import (
    BringBack,
    Losses,
    No,
    judged,
    may_lack,
    numbers_of,
    refused_at_once,
)
from berthmaster.executor.events import Listed
from berthmaster.lifecycle.digest import request_digest
from berthmaster.lifecycle.flaws import LOST
from berthmaster.lifecycle.fold import Verdict, judged_story, offer
from berthmaster.lifecycle.instructions import Outcome, Reload, Reloaded
from berthmaster.lifecycle.states import HELD
from berthmaster.lifecycle.workload import Key, Workload, key
from berthmaster.logcheck.core import Loss, heard
from berthmaster.logcheck.guard import BEGIN_AFTER, RECOVERY_S
from berthmaster.messages.control import LogAccepted
from berthmaster.messages.placement import Decision
from berthmaster.messages.workload import Claimed, Placed, Recovered, WorkloadEvent
from tests.simulation.bus import Bus, Follower, Message, recorded
from tests.simulation.clockwork import Process, Work
from tests.simulation.logwatch import LogWatch

NAME: Final = "door"
RECOVER_WITHIN_S: Final = 3600.0
_SAME: Final = tuple(
    (set(Receipt.__struct_fields__) & set(Workload.__struct_fields__)) - {"sequence"}
)
_OF_PLACED: Final = ("request", "attempt", "cluster", "pods", "target", "decision", "cell")


class Hint(NamedTuple):
    """A placement that is open in a cluster."""

    placed: Placed
    sequence: int
    receipt: str
    held: bool


class Doorway(Process):
    """One door, that never dies."""

    def __init__(self, bus: Bus) -> None:
        super().__init__(bus.clock, NAME)
        self.bus = bus
        self.ready = False
        self.log: Follower | None = None
        self._watched_so_far: LogWatch | None = None
        self._position = 0
        self._read_after_s = 0.0  # an acceptance, as the guard has it
        self._stories: dict[Key, list[Message]] = {}  # as it has read them: see log_view.py
        self._receipts = Receipts(b"the door's own")
        self._made: dict[tuple[int, float, int], str] = {}  # of which log, and of which placement
        self._told_of = ""
        self.on_renewed: Work = lambda: None
        self._asked: dict[str, Work] = {}  # clusters that want the list, and how they get it

    def boot(self) -> None:
        self.ready = False
        self.watch = LogWatch(
            self.bus,
            self,
            NAME,
            waits_for_executors=False,
            accepted=self.log_replaced,
            before=self._watched_so_far,
        )
        self._watched_so_far = self.watch
        self.watch.begin(self._follow)

    def log_replaced(self) -> None:
        self.kill()
        self.start()

    def _follow(self) -> None:
        self.watch.follows(1)
        self._receipts.log = self.bus.created
        self._receipts.accepted_at_s = self.bus.accepted_at_s
        self.followed = self.bus.created
        self._stories = {}
        self._position = 0
        self.log = Follower(self.bus, self.bus.log, self, self._on_log, self._caught_up)

    def _on_log(self, message: Message) -> None:
        self.watch.saw(message)
        self._position = message.sequence
        if not isinstance(message.body, Decision):
            name = key(message.body.tenant, message.body.id)
            self._stories.setdefault(name, []).append(message)

    def _caught_up(self) -> None:
        late_s = self.bus.clock.now_s - self.bus.accepted_at_s
        self._read_after_s = min(late_s, BEGIN_AFTER * RECOVERY_S)
        self.watch.caught_up()
        self.ready = True
        if self._told_of != self.bus.snapshot_of:
            was_told, self._told_of = self._told_of, self.bus.snapshot_of
            if was_told:
                self.on_renewed()
        asked, self._asked = self._asked, {}
        for answer in asked.values():
            answer()

    @property
    def is_up_to_date(self) -> bool:
        """Whether it has read all that is stored; until then whoever asks waits."""
        return self.ready and self._position >= self.bus.log.end

    # What executors ask

    def when_ready(self, cluster: str, answer: Work) -> None:
        """A cluster wants to know what is open there."""
        if self.ready:
            answer()
        else:
            self._asked[cluster] = answer

    def receipt(self, message: Message) -> str:
        event: Placed = message.body
        at = self.bus.makings, self.bus.accepted_at_s, message.sequence
        if at in self._made:
            return self._made[at]  # handed out again
        story = self.bus.stories.get(key(event.tenant, event.id), [])
        if message not in story:
            return ""  # lost on the way
        until = [one for one in story if one.sequence <= message.sequence]
        work, _ = judged_story(event.tenant, event.id, recorded(until), self.bus.is_lost)
        if work.attempt != event.attempt:  # the door had read what the log has lost since
            work.digest = request_digest(event.request)
            for field in _OF_PLACED:
                setattr(work, field, getattr(event, field))
        self._made[at] = self._signed(work, message.sequence)
        return self._made[at]

    def _signed(self, work: Workload, sequence: int) -> str:
        if work.request is None:
            return ""
        told = {field: getattr(work, field) for field in _SAME}
        return self._receipts.signed(Receipt(**told, sequence=sequence))

    def listed(self, cluster: str, *, renewed: bool) -> tuple[list[Hint], Listed]:
        hints: list[Hint] = []
        for name in sorted(self._stories):
            found = self._open(name, cluster)
            if found is not None:
                hints.append(found)
        names = frozenset(key(one.placed.tenant, one.placed.id) for one in hints)
        unheld = frozenset(key(one.placed.tenant, one.placed.id) for one in hints if not one.held)
        return hints, Listed(names, self._position, unheld, renewed)

    def _open(self, name: Key, cluster: str) -> Hint | None:
        story = self._stories[name]
        tenant, _, workload_id = name.partition("/")
        work, verdicts = judged_story(tenant, workload_id, recorded(story), self.bus.is_lost)
        if not work.live or work.cluster != cluster or Verdict.MISSED in verdicts:
            return None
        for message, verdict in zip(reversed(story), reversed(verdicts), strict=True):
            if verdict is Verdict.COUNTED and isinstance(message.body, Placed | Recovered):
                body = message.body
                if isinstance(body, Recovered):
                    fields = set(Placed.__struct_fields__) & set(Recovered.__struct_fields__)
                    body = Placed(**{field: getattr(body, field) for field in fields})
                held = work.state in HELD
                return Hint(body, message.sequence, self._signed(work, message.sequence), held)
        return None

    def holds_back(self, event: WorkloadEvent) -> bool:
        """Whether it is to be told again: the door has not read all that is stored, or it is a
        claim so shortly after an acceptance that a later attempt may still be brought back."""
        if not self.bus.watched:
            return False
        is_behind = self.ready and not self.is_up_to_date
        return is_behind or (isinstance(event, Claimed) and not self.executors_have_spoken)

    @property
    def executors_have_spoken(self) -> bool:
        return self.bus.clock.now_s - self.bus.accepted_at_s >= RECOVERY_S + self._read_after_s

    def may_follow(self, cluster: str, event: WorkloadEvent) -> bool:
        """Whether an executor's event fits what the log says; as log_view.py checks it. In an
        undamaged log its guard says so."""
        if not self.bus.watched:
            return True
        if not self.is_up_to_date:
            return False
        story = recorded(self._stories.get(key(event.tenant, event.id), []))
        work, verdicts = judged_story(event.tenant, event.id, story, self.bus.is_lost)
        if Verdict.MISSED in verdicts or not work.live or work.cluster != cluster:
            return False
        if event.after != work.sequence:
            return True  # the guard, or a fault, says what becomes of it
        return offer(work, event, self.bus.log.end + 1, 0.0) is Verdict.COUNTED

    def told(
        self, cluster: str, executor: str, step: Reload, story: list[Message], again: Work
    ) -> Reloaded | None:
        """How a workload stands; None: it is not known now, ask again, which ``again`` does once
        something was brought back."""
        if not self.ready or not self.watch.in_order:
            return None
        # One that is behind brings back all the same, which it judges by what is stored.
        was_behind = not self.is_up_to_date
        found = self._found(cluster, executor, step, story, again)
        return None if was_behind else found

    def _found(
        self, cluster: str, executor: str, step: Reload, story: list[Message], again: Work
    ) -> Reloaded | None:
        name = step.tenant, step.id
        read = recorded(self._stories.get(key(*name), []))
        work, verdicts = judged_story(*name, read, self.bus.is_lost)
        failed = LOST if Verdict.MISSED in verdicts else ""
        here = not failed and work.live and work.cluster == cluster
        if not here and not failed and not self.watch.certain:
            return None
        held = self._receipts.opened(step.receipt) if step.receipt else None
        found = Reloaded(
            ref=step.ref,
            workload=work if here else None,
            failed=failed,
            receipt=self._signed(work, self._placed_as(name, work)) if here else "",
        )
        if here and not step.receipt and not self.executors_have_spoken:
            return None
        lacks = not here or (held is not None and may_lack(held, work.attempt, work.state))
        if not step.receipt or not lacks:
            return found
        if not self.watch.certain:
            return None
        losses = self._losses()
        if why := refused_at_once(held, cluster, name, losses, self.bus.created):
            return Reloaded(ref=step.ref, workload=found.workload, failed=failed, why=why)
        assert held is not None
        mine = {one.sequence for one in story}
        there = {message.sequence for message in self.bus.log.messages} - mine
        verdict = judged(
            held,
            recorded(story),
            (),
            losses,
            self.bus.created,
            is_lost=self.bus.is_lost,
            taken=there.intersection(numbers_of(held)),
            executor=executor,
            now_s=self.now(),
            within_s=RECOVER_WITHIN_S * self.bus.pace.longer,
        )
        match verdict:
            case No(why):
                return Reloaded(ref=step.ref, workload=found.workload, failed=failed, why=why)
            case BringBack(event):

                def done(_: Outcome) -> None:
                    again()

                self.bus.append(self, event, done)
                return None
            case _:
                return None

    def _placed_as(self, name: tuple[str, str], work: Workload) -> int:
        """Under which number its open attempt began, as far as the log tells."""
        story = self._stories.get(key(*name), [])
        begun = [
            one.sequence
            for one in story
            if isinstance(one.body, Placed | Recovered) and one.body.attempt == work.attempt
        ]
        return begun[-1] if begun else work.sequence

    def _losses(self) -> Losses:
        facts = [m for m in self.bus.control.messages if isinstance(m.body, LogAccepted)]
        return Losses(
            tuple(
                Loss(m.body.created, m.stored_at_s, m.body.sequence, heard(m.body.missing))
                for m in facts
            )
        )
