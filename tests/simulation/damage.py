"""The log loses its end, a block of which the server tells, or all; an operator recovers it.

Every service that reads or writes the log notices, and decides and stores nothing. Executors keep
what they run. An operator hears of it, takes his time, and does as `berth recover` does: he asks
every cluster what it holds, plans the new log (cli/recover/core.py), and puts it in place. While a
cluster is silent he tries again later; now and then it is gone for good, and he names it.
"""

from collections import Counter
from typing import Final

from berthmaster.cli.recover.core import Copy, Held, plan
from berthmaster.lib.lifecycle.workload import key
from berthmaster.lib.messages.placement import Decision
from berthmaster.worker.executor.core.cluster_protocol import Attempt
from tests.simulation.bus import Message, recorded
from tests.simulation.clockwork import Process
from tests.simulation.deciders import Decider
from tests.simulation.doorway import Doorway
from tests.simulation.front import Front
from tests.simulation.people import Peopled
from tests.simulation.recovery import Recovery
from tests.simulation.sites import Site

FORMS: Final = ("end", "end", "block", "made anew", "missing")
SIZES: Final = (1, 2, 5, 20, 100)
NOTICED_S: Final = 10.0  # between two looks whether any service has noticed it
ANSWERS_S: Final = 5.0  # that clusters have to tell what they hold
TRIES: Final = 5  # before an operator may name clusters as gone


class Damaged(Peopled):
    """A world whose log is not safe."""

    def _prepare_damage(self) -> None:
        self.damages = self.recoveries = 0
        self.outcomes: Counter[str] = Counter()  # of workloads that were not simply kept
        self._backup: list[Message] = []
        self._is_told = False
        self.bus.on_damage_told = self._operator_hears
        self.bus.on_acknowledged = self._acknowledged

    def _readers(self) -> list[Decider | Front | Doorway]:
        return [*self.deciders, self.front, self.door]

    def _acknowledged(self, process: Process, message: Message) -> None:
        """A writer is told that it was stored; of a cluster the door is."""
        for each in self._readers():
            if each is (self.door if isinstance(process, Site) else process):
                each.guard.saw(message)

    def _begin_damage(self, process: Process, lasts_s: float) -> None:
        del process, lasts_s
        bus, dice = self.bus, self.faults.dice("damage")
        if not bus.log.messages or self.judge.pending:
            return  # one at a time
        form = dice.choice(FORMS)
        end, size = bus.log.end, dice.choice(SIZES)
        first, last = end - size + 1, end
        if form == "block":
            first = dice.choice(bus.log.messages).sequence
            last = min(end, first + size - 1)
        elif form != "end":
            first = 1
        if not any(first <= message.sequence <= last for message in bus.log.messages):
            return
        self._backup = []
        if dice.random() < 0.5:
            until = dice.choice(bus.log.messages).sequence
            self._backup = [one for one in bus.log.messages if one.sequence <= until]
        for each in self._readers():
            if each.up and not each.cut and not each.paused:
                each.guard.keep()
        self.damages += 1
        self._is_told = False
        self.judge.note("fate", f"the log loses {first} to {last}: {form}")
        self.note_misfortune(self.clock.now_s, f"damage ({form}, {first} to {last})", self.door, 0)
        self.judge.on_damage()
        incarnation = {"made anew": f"made-{bus.connections}", "missing": ""}
        bus.damage(
            first, last, named=form == "block", incarnation=incarnation.get(form, bus.incarnation)
        )
        for each in self._readers():
            if each.up:
                each.when_healed(each.guard.connected)
        self.clock.after(NOTICED_S, self._was_it_noticed)

    def _was_it_noticed(self) -> None:
        """What no service remembers is lost in silence: the log is what is left of it."""
        if self._is_told or not self.judge.pending:
            return
        if all(each.up and each.guard.sound for each in self._readers()):
            known = set(self.judge.workloads)
            self.judge.on_log(self.bus.log.messages)
            self.judge.unrecovered |= known - set(self.judge.workloads)
            self._submit_lost()
        else:
            self.clock.after(NOTICED_S, self._was_it_noticed)

    # The operator

    def _operator_hears(self, why: str) -> None:
        if self._is_told:
            return
        self._is_told = True
        self.judge.note("operator", why)
        wait_s = self.faults.dice("damage").choice((1.0, 30.0, 120.0))
        self.clock.after(wait_s, lambda: self._ask(1))

    def _ask(self, tries: int) -> None:
        """Every cluster what it holds."""
        held: list[Held] = []
        answered: set[str] = set()
        for site in self.sites:
            if site.up and not site.cut:
                life = site.life
                self.clock.after(
                    self.bus.delay_s(),
                    lambda s=site, n=life: s.arrive(n, lambda: self._answer(s, held, answered)),  # type: ignore[misc]
                )
        self.clock.after(ANSWERS_S, lambda: self._recover(tries, held, answered))

    def _answer(self, site: Site, held: list[Held], answered: set[str]) -> None:
        if site.cut:
            return
        name, receipts = site.spec.name, self.door.core.receipts
        answered.add(name)
        held += [Held(name, receipts.proven(name, each)) for each in site.core.held]

    def _recover(self, tries: int, held: list[Held], answered: set[str]) -> None:
        bus = self.bus
        without: set[str] = set()
        if tries >= TRIES and self.faults.dice("damage").random() < 0.3:
            without = {site.spec.name for site in self.sites} - answered
        copies = [_copy(bus.log.messages), _copy(self._backup)]
        archived = [one for story in bus.archive.values() for one in recorded(story)]
        seen = max(mark.streams[0].sequence for mark in bus.marks.values())
        made = plan(
            copies,
            archived,
            held,
            answered=answered,
            asked={site.spec.name for site in self.sites},
            without=without,
            seen=seen,
            now_s=self.clock.now_s,
        )
        if made.silent:
            self.judge.note("operator", f"silent: {made.silent}")
            again_s = ANSWERS_S * self.pace.longer
            self.clock.after(again_s, lambda: self._ask(tries + 1))
            return
        for site in self.sites:
            if site.spec.name in without:
                site.lose_all()
        left = [*bus.log.messages, *self._backup]
        reported = {
            (one.cluster, Attempt(one.attempt.tenant, one.attempt.id, one.attempt.attempt))
            for one in held
        }
        self.judge.on_recovery(Recovery(made, frozenset(answered), left, reported))
        bus.archive = {}
        for kept in made.histories:
            name = key(kept.tenant, kept.id)
            bus.archive[name] = [
                Message(one.sequence, one.stored_at_s, name, one.event) for one in kept.events
            ]
        bus.replace(made.first, (*made.decisions, *made.carried, *made.tombstones))
        self.recoveries += 1
        self.outcomes.update(line.outcome for line in made.lines)
        self.judge.note("operator", made)
        self.judge.on_log(bus.log.messages)
        self._submit_lost()


def _copy(messages: list[Message]) -> Copy:
    events = [one for one in messages if not isinstance(one.body, Decision)]
    decisions = [(one.sequence, one.body) for one in messages if isinstance(one.body, Decision)]
    last = max((one.sequence for one in messages), default=0)
    return Copy(recorded(events), decisions, last)
