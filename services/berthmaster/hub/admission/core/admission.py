"""The writes that bring a hub's checks to the wanted state. Pure.

The core is level-triggered: ``act`` compares the present state with the wanted state, and returns
the differences. Each object has at most one write in flight. All state follows from the hub's
objects, so a restarted process continues. Only a settle period (leaving.py) starts again. A check,
configuration or Workload that raises is skipped with an error, and no Workload passes such a check
meanwhile.

``whole``: this replica holds the lease and receives the workers' reports. Otherwise (the bus is
unreachable) Workloads pass and clusters are added, but nothing is removed or deleted. Every replica
does the same, and every write is guarded by the version of its decision.
"""

from typing import Final, NamedTuple, assert_never

from berthmaster.hub.admission.core.gate import CheckVerdict, new_state
from berthmaster.hub.admission.core.index import HubIndex, ObjectKey
from berthmaster.hub.admission.core.instructions import (
    Connect,
    DeleteConfig,
    Instruction,
    Write,
    WriteConditions,
    WriteConfig,
    WriteState,
)
from berthmaster.hub.admission.core.leaving import Leaving
from berthmaster.hub.admission.core.members import Members
from berthmaster.hub.admission.core.objects import check_of
from berthmaster.hub.admission.core.review import Review, conditions, review, same
from berthmaster.hub.admission.core.selection import Reason, half_written
from berthmaster.lib.kube.controller.aside import Phase, SetAside
from berthmaster.lib.kube.controller.shell_contract import Answer, KubeEvent
from berthmaster.lib.kube.objects import Object, key_of
from berthmaster.lib.kube.resources import ADMISSION_CHECKS, KUEUE_WORKLOADS, MULTIKUEUE_CONFIGS
from berthmaster.lib.kueue.multikueue import AdmissionCheck, MultiKueueConfig
from berthmaster.lib.kueue.workloads import Workload

AGAIN_S: Final = 10.0  # seconds after a failed write
SOON_S: Final = 0.5  # seconds after a write with a conflict, or one not mirrored yet
MIRRORED_S: Final = 5.0  # seconds for a write to return through the mirror
WRITTEN_S: Final = 2.0  # seconds for a scheduler from its decisions to its status
MOST_CONNECTS: Final = 20  # maximum in one pass
MOST_STATES: Final = 200  # maximum number of Workload writes in flight
MOST_REMEMBERED: Final = 10_000  # limit of remembered pauses, before expired ones are dropped
FOREVER_S: Final = float("inf")


class _Flight(NamedTuple):
    kind: str
    name: str
    at: ObjectKey = ("", "")


class Admission:
    def __init__(self, namespace: str, *, settle_s: float) -> None:
        """``namespace`` is of Placements. ``settle_s``: see leaving.py."""
        self.aside = SetAside()
        self.index = HubIndex(namespace)
        self.reviews: dict[str, Review] = {}
        self.standings: dict[str, CheckVerdict] = {}
        self._at_s = 0.0
        self._due_s = FOREVER_S
        self._leaving = Leaving(settle_s)
        self._moved = True
        self._whole = False
        self._dirty: set[ObjectKey] = set()
        self._flying: set[_Flight] = set()
        self._not_before_s: dict[_Flight, float] = {}
        # config -> (resource version, time limit)
        self._expected: dict[str, tuple[str, float]] = {}
        self._trouble: dict[str, str] = {}  # config -> error of its last write
        self._written: dict[str, tuple[object, float]] = {}  # check -> (last conditions, time)
        # check -> time since which its decisions are half-written
        self._half_written_s: dict[str, float] = {}
        self._kept: set[str] = set()  # configurations whose blocked deletion was reported

    # Inputs

    def on_object(self, thing: Object, *, gone: bool) -> None:
        """Apply an object's current or last state."""
        (self.index.drop if gone else self.index.put)(thing)
        if not isinstance(thing, Workload):
            self._moved = True
            return
        if not gone:
            self._dirty.add(key_of(thing.metadata))
        self._moved = self._moved or self._drains

    def on_absent(self, why: str) -> None:
        """Set why the hub has no Placements, or ""."""
        if why != self.index.absent:
            self.index.absent = why
            self._moved = True

    def on_unreadable(self, placements: dict[str, str], pages: dict[str, str]) -> None:
        """Set the Placements and PlacementDecisions that are unreadable now."""
        self._moved |= self.index.set_unreadable(placements, pages)

    def on_copy(self, cluster: str, at: ObjectKey, *, there: bool) -> None:
        self.index.set_copy(cluster, at, there)
        self._moved = self._moved or self._drains

    def on_answer(self, write: Write, answer: Answer, now_s: float) -> tuple[Instruction, ...]:
        flight = _flight_of(write)
        if flight not in self._flying:
            return ()
        self._flying.discard(flight)
        if not answer.done:
            self._not_before_s[flight] = now_s + (SOON_S if answer.passes else AGAIN_S)
        if flight.kind == "state":
            if not answer.done:
                self._dirty.add(flight.at)
                self._due(self._not_before_s[flight])
            return ()
        self._moved = True
        if flight.kind == "config":
            self._on_config(flight.name, answer, now_s)
        elif flight.kind == "check" and not answer.done:
            self._written.pop(flight.name, None)
        return ()

    def _on_config(self, name: str, answer: Answer, now_s: float) -> None:
        if answer.passes:
            return
        if not answer.done:
            self._trouble[name] = answer.why
            self._leaving.end(name, now_s, in_vain=True)
            return
        self._trouble.pop(name, None)
        self._leaving.end(name, now_s, in_vain=False)
        if isinstance(answer.found, MultiKueueConfig):
            version = answer.found.metadata.resource_version
            self._expected[name] = (version, now_s + MIRRORED_S)

    @property
    def _drains(self) -> bool:
        return any(found.members.draining for found in self.reviews.values())

    # Actions

    def begin(self) -> None:
        """Start acting."""
        self._leaving.forget()
        self._moved = True
        self._dirty.update(at for waiting in self.index.waiting.values() for at in waiting)

    def on_whole(self, whole: bool, *, at_s: float) -> None:
        """Set whether enough is known to remove anything. ``at_s``: seconds since 1970, for
        status times."""
        self._at_s = at_s
        if whole != self._whole:
            self._whole = whole
            self._moved = True
            self._leaving.forget()

    def wake_at_s(self) -> float:
        """Return the time of the next change without an input."""
        return self._due_s

    def act(self, now_s: float) -> list[Instruction]:
        """Return the allowed writes that change the present state to the wanted one.

        ``now_s`` is monotonic time.
        """
        out: list[Instruction] = []
        if len(self._not_before_s) > MOST_REMEMBERED:
            self._not_before_s = {f: s for f, s in self._not_before_s.items() if s > now_s}
        if self._moved or now_s >= self._due_s:
            self._moved = False
            self._due_s = FOREVER_S
            for name, check in sorted(self.index.checks.items()):
                if not check.for_placement:
                    self.aside.clear(Phase.ACTING, ADMISSION_CHECKS, ("", name))
                    continue
                with self.aside.trying(Phase.ACTING, ADMISSION_CHECKS, check.metadata):
                    out += self._asked(self._check(name, check, now_s))
                if self.aside.holds(Phase.ACTING, ADMISSION_CHECKS, ("", name)):
                    self.standings.pop(name, None)  # no Workload passes or gets a message
            for name in [n for n in self.reviews if not self._is_ours(n)]:
                del self.reviews[name]
                self.standings.pop(name, None)
                self._half_written_s.pop(name, None)
            if self._whole:
                out += self._orphans(now_s)
            self._due(self._leaving.next_due_s(now_s))
        return out + self._states(now_s)

    def _is_ours(self, name: str) -> bool:
        check = self.index.checks.get(name)
        return check is not None and check.for_placement

    def _due(self, at_s: float) -> None:
        self._due_s = min(self._due_s, at_s)

    def _may(self, flight: _Flight, now_s: float) -> bool:
        """Return whether a write may begin. If only time prevents it, schedule another check."""
        if flight in self._flying:
            return False
        not_before_s = self._not_before_s.get(flight, 0.0)
        if now_s < not_before_s:
            self._due(not_before_s)
            return False
        self._not_before_s.pop(flight, None)
        return True

    def _asked(self, out: list[Instruction]) -> list[Instruction]:
        """Mark these writes as in flight."""
        self._flying.update(_flight_of(one) for one in out if not isinstance(one, KubeEvent))
        return out

    # Checks

    def _check(self, name: str, check: AdmissionCheck, now_s: float) -> list[Instruction]:
        if self._is_half_written(name, check, now_s):
            if (known := self.standings.get(name)) is not None:
                self.standings[name] = known._replace(held=True)
            return []
        trouble = self._trouble.get(name, "")
        found = review(check, self.index, trouble=trouble)
        free: frozenset[str] = frozenset()
        awaited = self._awaited(name, found.config, now_s)
        if self._whole and not awaited:
            empty = [c for c in found.marked if not self.index.left_behind(name, c)]
            free = self._leaving.look(name, empty, now_s)
        if free:
            found = review(check, self.index, free=free, trouble=trouble)
        self.reviews[name] = found
        soon = found.being_made and not trouble
        standing = found.standing._replace(held=soon or self._leaving.holds(name))
        if standing != self.standings.get(name):
            self.standings[name] = standing
            self._dirty |= self.index.waiting.get(name, set())
        out = [] if awaited else self._config(name, check, found, now_s)
        out += self._connects(found, now_s)
        return out + self._tell(name, check, found, now_s)

    def _is_half_written(self, name: str, check: AdmissionCheck, now_s: float) -> bool:
        """Return whether the decisions of the check's Placement are half-written.

        The wait is limited, because a scheduler may have crashed between the writes.
        """
        if not half_written(check, self.index.ocm):
            self._half_written_s.pop(name, None)
            return False
        until_s = self._half_written_s.setdefault(name, now_s) + WRITTEN_S
        if now_s >= until_s:
            return False
        self._due(until_s)
        return True

    def _config(
        self, name: str, check: AdmissionCheck, found: Review, now_s: float
    ) -> list[Instruction]:
        flight = _Flight("config", name)
        if not found.writes or not self._may(flight, now_s):
            return []
        clusters, draining = found.members.clusters, found.members.draining
        write = WriteConfig(name, clusters, draining, found.config)
        return [write, *self._changes(check, found.config, found.members)]

    def _awaited(self, name: str, config: MultiKueueConfig | None, now_s: float) -> bool:
        """Return whether a write has not returned yet, so that the mirror is stale."""
        version, until_s = self._expected.get(name, ("", 0.0))
        if not version:
            return False
        have = config.metadata.resource_version if config is not None else ""
        if have == version or now_s >= until_s:
            del self._expected[name]
            return False
        self._due(now_s + SOON_S)
        return True

    def _changes(
        self, check: AdmissionCheck, before: MultiKueueConfig | None, after: Members
    ) -> list[Instruction]:
        """Return events for added, draining and removed clusters."""
        had = before.clusters if before is not None else ()
        drained = before.draining if before is not None else ()
        told = (
            ("ClusterAdded", [c for c in after.clusters if c not in had]),
            ("ClusterDraining", [c for c in after.draining if c not in drained]),
            ("ClusterRemoved", [c for c in had if c not in after.clusters]),
        )
        about = check.metadata
        return [
            KubeEvent(ADMISSION_CHECKS, about, False, reason, ", ".join(names))
            for reason, names in told
            if names
        ]

    def _connects(self, found: Review, now_s: float) -> list[Instruction]:
        out: list[Instruction] = []
        for cluster in found.members.unknown:
            flight = _Flight("cluster", cluster)
            if len(out) < MOST_CONNECTS and self._may(flight, now_s):
                # Retry later after a failure. After success, the cluster is soon known.
                self._not_before_s[flight] = now_s + AGAIN_S
                out.append(Connect(cluster))
        if out:
            self._due(now_s + AGAIN_S)
        return out

    def _tell(
        self, name: str, check: AdmissionCheck, found: Review, now_s: float
    ) -> list[Instruction]:
        if found.being_made and name not in self._trouble:
            return []  # reported after the write, or after its failure
        wanted = conditions(found, check, self._at_s)
        if same(wanted, check):
            return []
        meaning = [(one.type, one.status, one.reason, one.message) for one in wanted]
        told, told_s = self._written.get(name, (None, 0.0))
        if told == meaning and now_s < told_s + AGAIN_S:
            self._due(told_s + AGAIN_S)  # not mirrored yet, or another client overwrites the status
            return []
        flight = _Flight("check", name)
        if not self._may(flight, now_s):
            return []
        self._written[name] = (meaning, now_s)
        out: list[Instruction] = [WriteConditions(name, wanted)]
        for one in wanted:
            have = check.condition(one.type)
            if have is None or (have.reason, have.message) != (one.reason, one.message):
                warning = one.reason != Reason.ACTIVE
                reason = one.type if one.reason == "TooManyClusters" else one.reason
                out.append(
                    KubeEvent(ADMISSION_CHECKS, check.metadata, warning, reason, one.message)
                )
        return out

    # Configurations of deleted checks

    def _orphans(self, now_s: float) -> list[Instruction]:
        out: list[Instruction] = []
        for name, config in sorted(self.index.configs.items()):
            if check_of(config) != name or self._is_ours(name):
                self._kept.discard(name)
                continue
            with self.aside.trying(Phase.ACTING, MULTIKUEUE_CONFIGS, config.metadata):
                out += self._asked(self._orphan(name, config, now_s))
        return out

    def _orphan(self, name: str, config: MultiKueueConfig, now_s: float) -> list[Instruction]:
        users = self.index.users(name)
        if users:
            if name in self._kept:
                return []
            self._kept.add(name)
            note = f"its check is gone and it stays: AdmissionCheck {users[0]} names it"
            reason = Reason.CONFIG_DELETE_ERROR.value
            return [KubeEvent(MULTIKUEUE_CONFIGS, config.metadata, True, reason, note)]
        if not self._may(_Flight("deletion", name), now_s):
            return []
        return [DeleteConfig(config)]

    # Workloads

    def _states(self, now_s: float) -> list[Instruction]:
        out: list[Instruction] = []
        left: set[ObjectKey] = set()
        flying = sum(1 for flight in self._flying if flight.kind == "state")
        for at in sorted(self._dirty):
            workload = self.index.workloads.get(at)
            if workload is None:
                continue
            with self.aside.trying(Phase.ACTING, KUEUE_WORKLOADS, workload.metadata):
                writes, whole = self._state(at, workload, MOST_STATES - flying, now_s)
                out += self._asked(writes)
                flying += len(writes)
                if not whole:
                    left.add(at)
        self._dirty = left
        return out

    def _state(
        self, at: ObjectKey, workload: Workload, room: int, now_s: float
    ) -> tuple[list[Instruction], bool]:
        """Return (writes of one Workload's checks, whether they are complete)."""
        out: list[Instruction] = []
        whole = True
        for state in workload.checks:
            standing = self.standings.get(state.name)
            said = new_state(workload, state.name, standing) if standing is not None else None
            if said is None or standing is None:
                continue
            if len(out) >= room or not self._may(_Flight("state", state.name, at), now_s):
                whole = False
                continue
            out.append(WriteState(workload, state.name, standing.passes, said.message))
        return out, whole


def _flight_of(write: Write) -> _Flight:
    """Return the key of a write. Each key has at most one write in flight."""
    match write:
        case WriteConfig():
            return _Flight("config", write.name)
        case DeleteConfig():
            return _Flight("deletion", write.base.metadata.name)
        case Connect():
            return _Flight("cluster", write.cluster)
        case WriteConditions():
            return _Flight("check", write.check)
        case WriteState():
            return _Flight("state", write.check, key_of(write.base.metadata))
        case _:
            assert_never(write)
