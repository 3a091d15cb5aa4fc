"""The log loses something: its tail, a block in its middle, or all since an older copy of it,
which is put back. Services must notice; nothing is decided until the operator has accepted it.

The operator does as `berth repair accept-log` does: looks, reads the log through, and accepts what
is missing. He is told by any service, and takes his time.
"""

from dataclasses import dataclass
from typing import Final

from berthmaster.bus.follow import REPLACED_AFTER_S
from berthmaster.bus.streams import WORKLOADS
from berthmaster.executor.cluster_protocol import Attempt
from berthmaster.lifecycle.workload import Workload, key
from berthmaster.logcheck import core
from berthmaster.logcheck.guard import RECOVERY_S
from berthmaster.messages.api import ApiReply, OperatorReply
from berthmaster.messages.workload import Recovered, Submitted
from tests.simulation.bus import Message
from tests.simulation.clockwork import Process
from tests.simulation.deciders import Decider
from tests.simulation.doorway import Doorway
from tests.simulation.front import Front
from tests.simulation.logwatch import (
    counted,
    damage_of,
    digests_of,
    held_against_marks,
    new_reading,
)
from tests.simulation.people import Peopled
from tests.simulation.sites import Site

FORMS: Final = ("tail", "middle", "old files", "copy")
GIVES_UP_S: Final = 120.0  # after an acceptance, and again
SPOKEN_LOOK_S: Final = 0.25  # between two looks whether executors can answer
AWAY_S: Final = 5.0  # before the operator looks again whether all clusters answer
READERS: Final = (Decider, Front, Doorway)
SIZES: Final = (1, 2, 5, 20)


@dataclass
class Lost:
    at_s: float
    form: str
    first: int
    last: int
    is_marked: bool  # a mark that lasts tells that these numbers were there
    readers: tuple[tuple[Process, int], ...]  # who remembers it while its life lasts
    is_told: bool = False  # since then somebody has told of damage

    @property
    def known(self) -> bool:
        """Whether anything remembers it, or did for long enough to tell."""
        remembered = any(reader.life == life for reader, life in self.readers)
        return self.is_marked or self.is_told or remembered


class Damaged(Peopled):
    """A world whose log is not safe."""

    def _prepare_damage(self) -> None:
        self.damages: list[Lost] = []
        self._operator_looks = False
        self._looked_in_vain = False
        self.bus.on_damage_told = self._operator_hears
        self.bus.on_accepted = self._executors_speak
        self.bus.on_acknowledged = self._acknowledged

    def _begin_damage(self, process: Process, lasts_s: float) -> None:
        del process, lasts_s
        log, dice = self.bus.log, self.faults.dice("damage")
        if not log.messages or self.damage_is_pending():
            return  # one at a time
        form = dice.choice(FORMS)
        first, last = max(1, log.end - dice.choice(SIZES) + 1), log.end
        if form == "middle":
            first = dice.randint(1, log.end)
            last = min(log.end - 1, first + dice.choice(SIZES) - 1)
        elif form != "tail":
            first = dice.randint(1, log.end)
        if not any(first <= message.sequence <= last for message in log.messages):
            return  # all of it is lost already
        found = Lost(self.clock.now_s, form, first, last, *self._remembers(first, form == "copy"))
        self.judge.note("fate", f"the log loses {first} to {last}: {form}")
        self.note_misfortune(
            self.clock.now_s, f"damage ({form}) {first} to {last} of", self.door, 0
        )
        lost = self.bus.damage(first, last, remade=form == "copy")
        self.damages.append(found)
        open_ = {work.key for work in self.bus.snapshot_open()}
        self.judge.on_damage(lost, open_)
        for each in self.processes:
            each.when_healed(lambda p=each: self._reconnected(p))  # type: ignore[misc]

    def _acknowledged(self, process: Process, message: Message) -> None:
        writer = self.door if isinstance(process, Site) else process
        if isinstance(writer, READERS) and writer.up and not writer.cut:
            writer.watch.knows(message)

    def damage_is_pending(self) -> bool:
        """Whether there is damage that nobody has accepted yet."""
        return bool(self.damages) and self.damages[-1].at_s > self.bus.accepted_at_s

    def _remembers(
        self, first: int, is_remade: bool
    ) -> tuple[bool, tuple[tuple[Process, int], ...]]:
        """Whether a mark, and who of those that follow the log, has seen what it held: one of which
        only the length is known may be as long again before anybody looks. Of one that is made
        anew it is enough to know that there was another; deciders that follow one end by that,
        and those that begin in their place know only what marks say. What was seen before an
        acceptance says nothing of what is there since."""
        watching: list[Front | Doorway] = [self.front, self.door]
        alive = [each for each in (*watching, *self.deciders) if _is_awake(each)]
        if is_remade:
            own = [each for each in watching if each in alive and each.watch.own()]
            readers = [each for each in own if counted(self.bus, each.watch.own())]
            return bool(counted(self.bus)), tuple((each, each.life) for each in readers)
        marks = [max(one.digests, default=0) for one, _ in counted(self.bus)]
        current = [each for each in alive if each.watch.is_current]
        return max(marks, default=0) >= first, tuple(
            (each, each.life) for each in current if each.watch.seen_to >= first
        )

    # As bus/follow.py does when its connection is there again

    def _reconnected(self, process: Process) -> None:
        life, created = process.life, self.bus.created
        if isinstance(process, READERS) and process.up:
            process.watch.looks_at_once()

        def look(*, last: bool) -> None:
            if process.life != life or not isinstance(process, READERS) or not process.log:
                return
            if process.followed != created or (last and process.log.is_beyond):
                self._replaced(process)
            elif not last:
                process.later(REPLACED_AFTER_S, lambda: look(last=True))

        process.later(self.bus.delay_s(), lambda: look(last=False))

    def _replaced(self, process: Decider | Front | Doorway) -> None:
        self.judge.note("fate", f"{process.name} follows another log than it knew")
        if isinstance(process, Front | Doorway):
            process.log_replaced()
        else:
            process.kill()
            process.start()

    # The operator

    def _operator_hears(self, words: str) -> None:
        if not self.damages:
            return
        self.damages[-1].is_told |= self.damage_is_pending()
        if self._operator_looks:
            return
        # Perhaps again: what is asked for again and again may be stored after more was lost.
        self._operator_looks = True
        self._all_look()
        self.judge.note("operator", words)
        wait_s = self.faults.dice("damage").choice((1.0, 30.0, 120.0))
        self.clock.after(wait_s, self._operator_accepts)

    def _operator_accepts(self) -> None:
        bus = self.bus
        self._operator_looks = False
        if any(self._is_away(site) for site in self.sites):
            self._operator_looks = (
                True  # first all clusters must answer, or they bring nothing back
            )
            self.clock.after(AWAY_S * self.pace.longer, self._operator_accepts)
            return
        reading = new_reading(bus)
        found = [*held_against_marks(bus), *damage_of(bus, reading)]
        if not found and not self.damage_is_pending():
            return
        if not found and not self._looked_in_vain:
            self._looked_in_vain = True
            return  # if somebody tells again all the same, nobody else remembers what it knows
        self._operator_looks, self._looked_in_vain = True, False
        gaps = core.together([*bus.accepted_missing, *(g for each in found for g in each.missing)])
        accepting = core.accepting(gaps, bus.log.end)
        body: dict[str, object] = {
            "stream": WORKLOADS,
            "created": bus.created,
            "sequence": bus.log.end,
            "missing": [{"first": gap.first, "last": gap.last} for gap in accepting],
            "digests": digests_of(bus, core.heard(accepting)),
            "reason": "so it is",
            "after": bus.accepted_sequence,
        }
        self.judge.told_lost |= self._told_jobs(found)
        self.person.ask("accept_log", body, operator=True, then=self._accepted)

    def _accepted(self, reply: ApiReply) -> None:
        self._operator_looks = False
        if not isinstance(reply, OperatorReply):
            self.judge.find("what an operator accepts is accepted", str(reply))
        self.clock.after(GIVES_UP_S * self.pace.longer, self._operator_gives_up)

    def _executors_speak(self) -> None:
        """Who answers within the time that is promised for it."""
        self._all_look()
        looks = int(RECOVERY_S / SPOKEN_LOOK_S)
        silent: set[str] = set()
        acceptance = self.bus.accepted_at_s

        def look(left: int) -> None:
            if self.bus.accepted_at_s != acceptance or self.damage_is_pending():
                return  # it is told anew then
            away = self.door.cut
            silent.update(s.spec.name for s in self.sites if away or self._is_away(s))
            if left:
                self.clock.after(SPOKEN_LOOK_S, lambda: look(left - 1))
            else:
                self.judge.on_spoken(silent, self._unanswered())

        look(looks)

    def _unanswered(self) -> set[Attempt]:
        """Whose executors have asked how they stand, and were not answered yet."""
        return {
            attempt
            for site in self.sites
            for attempt in site.cluster.world.groups
            if key(attempt.tenant, attempt.id) in site.asking
        }

    def _all_look(self) -> None:
        """There is something to be seen: in a fast world, and in a real one, all look so often."""
        watching: list[Decider | Front | Doorway] = [*self.deciders, self.front, self.door]
        for each in watching:
            if each.life:
                each.when_healed(each.watch.looks_often)

    @staticmethod
    def _is_away(site: Site) -> bool:
        return site.cut or site.paused or not site.up

    def _operator_gives_up(self) -> None:
        """Whatever is frozen and brought back by nobody: not what runs somewhere."""
        if self.judge.frozen:
            self.clock.after(GIVES_UP_S * self.pace.longer, self._operator_gives_up)
        away = any(self._is_away(site) for site in self.sites)
        if away or (self.damage_is_pending() and self.damages[-1].known):
            return
        groups = [g for site in self.sites for g in site.cluster.world.groups.values()]
        held = {key(g.attempt.tenant, g.attempt.id) for g in groups if self.judge.alive(g)}
        for name in sorted(self.judge.frozen - held):
            tenant, _, workload_id = name.partition("/")
            self.judge.cancels.add(name)
            body: dict[str, object] = {
                "tenant": tenant,
                "id": workload_id,
                "sequence": self.bus.stories[name][-1].sequence,
                "reason": "nobody has it",
            }
            self.person.ask("give_up", body, operator=True)

    def _told_jobs(self, found: list[core.Damage]) -> set[str]:
        """As logcheck's with_jobs: the open jobs that it touches, as the snapshot knew them."""
        missing = sorted(gap for each in found for gap in each.missing)
        holds = {message.sequence: message for message in self.bus.log.messages}

        def is_replaced(one: Workload) -> bool:
            last, first = holds.get(one.sequence), holds.get(one.submitted_sequence)
            if last is not None and last.subject != one.key:
                return True
            begins = first is None or isinstance(first.body, Submitted | Recovered)
            return first is not None and not (begins and first.subject == one.key)

        return {
            one.key
            for one in self.bus.snapshot_open()
            if core.touches((one.sequence, one.submitted_sequence), missing) or is_replaced(one)
        }


def _is_awake(process: Process) -> bool:
    return bool(process.life) and process.up and not process.paused
