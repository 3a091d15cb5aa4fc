"""What befalls the services of one world, when, and for how long."""

from collections.abc import Callable
from functools import partial
from typing import Final

from tests.simulation.bus import Message
from tests.simulation.clockwork import START_S, Process
from tests.simulation.damage import Damaged
from tests.simulation.deciders import Decider
from tests.simulation.lies import lie
from tests.simulation.sites import Site

Begin = Callable[[Process, float], None]
TIMES: Final = {"bus_away": (1,), "damage": (1, 1, 2)}
LONGEST_S: Final = 7 * 86_400.0  # well within the 30 days for which an ended id is remembered
EVENTS_A_JOB: Final = 8  # of the log, decisions among them


class Haunted(Damaged):
    def _misfortunes(self) -> None:
        self._strikes: dict[int, list[tuple[str, Begin, Process, float]]] = {}
        self.bus.on_stored = self._on_stored
        self._prepare_damage()
        for process in self.processes:
            self.clock.at(START_S + self.chance.random(), process.start)
        span_s = self.calm_at_s - START_S
        for kind in ("crash", "pause", "partition", "two_deciders", "bus_away", "clocks", "damage"):
            dice = self.faults.dice(kind)
            if not self.faults.has(kind):
                continue
            for _ in range(dice.choice(TIMES.get(kind, (2, 4, 8)))):
                process = dice.choice(self.targets)
                at_s = START_S + span_s * dice.random()
                lasts_s = dice.choice((0.5, 5.0, 30.0, 120.0, 300.0)) * dice.random()
                if kind == "partition" and dice.random() < 0.03:
                    lasts_s = 7200.0
                if self.pace.strikes_at_events:
                    lasts_s = min(LONGEST_S, lasts_s * dice.choice((1.0, self.pace.longer)))
                self._befalls(kind, process, at_s, lasts_s)
        # What is forged in a log that loses something nobody can tell from what was true.
        if self.faults.has("lies") and not self.faults.has("damage"):
            dice = self.faults.dice("lies")
            for _ in range(dice.choice((5, 20, 60))):
                self.clock.at(START_S + span_s * dice.random(), self._lie)
        self.clock.at(self.calm_at_s + 0.01, self._calm)

    def _befalls(self, kind: str, process: Process, at_s: float, lasts_s: float) -> None:
        """At that time, or when the log has a length that is drawn, where the pace wants it."""
        begin: Begin = getattr(self, f"_begin_{kind}")
        dice = self.faults.dice(kind)
        if self.pace.strikes_at_events and dice.random() < self.pace.strikes_at_events:
            length = dice.randrange(EVENTS_A_JOB * self.jobs)
            self._strikes.setdefault(length, []).append((kind, begin, process, lasts_s))
            return
        self.calm_at_s = max(self.calm_at_s, at_s + lasts_s)
        self.note_misfortune(at_s, kind, process, lasts_s)
        self.clock.at(at_s, lambda: begin(process, lasts_s))

    def _on_stored(self, message: Message) -> None:
        self.judge.on_stored(message)
        for kind, begin, process, lasts_s in self._strikes.pop(self.bus.log.end, ()):
            if not self.faults.quiet:
                self.calm_at_s = max(self.calm_at_s, self.clock.now_s + lasts_s)
                self.note_misfortune(self.clock.now_s, kind, process, lasts_s)
                self.clock.after(0.0, partial(begin, process, lasts_s))

    def _lie(self) -> None:
        dice = self.faults.dice("lies")
        known = [work for work in self.judge.workloads.values() if not work.ended]
        if not known:
            return
        work = dice.choice(known)
        event = lie(dice, work, self.bus.log.end + 1)
        self.judge.lies.add(self.bus.log.end + 1)
        self.bus.forge(event)

    def _soon(self, process: Process, fault: Callable[[], None], kind: str) -> None:
        """In the middle of what it does next, or just before what matters most."""
        if isinstance(process, Site | Decider) and self.faults.dice(kind).random() < 0.4:
            process.trap = fault
            return
        process.fuse = (self.faults.dice(kind).choice((0, 1, 2, 3, 5)), fault)

    def _begin_crash(self, process: Process, lasts_s: float) -> None:
        if isinstance(process, Site):
            process.pods_die_with_it = self.faults.dice("crash").random() < 0.5
        if not process.up:
            return

        def die() -> None:
            self.judge.note("fate", f"{process.name} is killed")
            process.kill()
            self.clock.after(lasts_s, again)

        def again() -> None:
            if not process.up:
                self.judge.note("fate", f"{process.name} starts")
                process.start()

        self._soon(process, die, "crash")

    def _begin_pause(self, process: Process, lasts_s: float) -> None:
        def stop() -> None:
            self.judge.note("fate", f"{process.name} stands still")
            process.pause()
            life = process.life
            self.clock.after(lasts_s, lambda: process.wake() if process.life == life else None)

        self._soon(process, stop, "pause")

    def _begin_partition(self, process: Process, lasts_s: float) -> None:
        self.judge.note("fate", f"{process.name} is cut off")
        process.cut = True
        self.clock.after(lasts_s, process.heal)

    def _begin_bus_away(self, process: Process, lasts_s: float) -> None:
        for each in self.processes:
            self._begin_partition(each, lasts_s)

    def _begin_two_deciders(self, process: Process, lasts_s: float) -> None:
        for decider in self.deciders:
            decider.ignores_lease = True

        def over() -> None:
            for decider in self.deciders:
                decider.ignores_lease = False

        self.clock.after(lasts_s, over)

    def _begin_clocks(self, process: Process, lasts_s: float) -> None:
        if process.paused:
            return  # nobody sets the clock of who stands still
        process.clock_error_s = self.faults.dice("clocks").choice((-300.0, -20.0, 20.0, 300.0))

        def right() -> None:
            if process.paused:
                self.clock.after(lasts_s, right)
            else:
                process.clock_error_s = 0.0

        self.clock.after(lasts_s, right)

    def _calm(self) -> None:
        if self.clock.now_s < self.calm_at_s:  # something struck late
            self.clock.at(self.calm_at_s + 0.01, self._calm)
            return
        self.faults.quiet = True
        self.judge.note("fate", "no more faults")
        for process in self.processes:
            process.fuse = process.trap = None
            process.heal()
            if process.paused:
                process.wake()
            process.clock_error_s = 0.0
            if not process.up:
                process.start()
        for site in self.sites:
            site.pods_die_with_it = False
        for decider in self.deciders:
            decider.ignores_lease = False
        for site in self.sites:
            if self.faults.has("lost"):
                body: dict[str, object] = {"cluster": site.spec.name, "reason": "over"}
                self.person.ask("found", body, operator=True)
