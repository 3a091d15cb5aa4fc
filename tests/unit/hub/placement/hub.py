"""A hub that takes the evaluator's writes as a real one would, with versions and conflicts."""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from berthmaster.hub.placement.core.evaluator import Evaluator, Thing
from berthmaster.hub.placement.core.instructions import (
    DropPage,
    DropSlice,
    PutPage,
    PutSlice,
    PutStatus,
    Write,
    WriteDecisions,
)
from berthmaster.hub.placement.core.objects import Placement, PlacementDecision
from berthmaster.lib.kube.controller.shell_contract import Answer, KubeEvent, Outcome
from berthmaster.lib.kube.mirror import Key
from berthmaster.lib.kube.multicluster import DecisionSlice
from berthmaster.lib.kube.objects import key_of
from tests.unit.hub.placement.objects import NAMESPACE, NOW_S, binding, cluster_set, language


class Hub:
    """Objects with versions; what is written is told to the evaluator, as a watch would."""

    def __init__(self, *things: Thing, ready: bool = True) -> None:
        self.core = Evaluator()
        self.now_s = NOW_S
        self.decisions: dict[Key, PlacementDecision] = {}
        self.placements: dict[Key, Placement] = {}
        self.slices: dict[Key, DecisionSlice] = {}
        self.writes: list[str] = []
        self.events: list[KubeEvent] = []
        self.refuse: Callable[[Write], str] = lambda write: ""
        self.answers = True  # whether expressions can be evaluated
        self.questions = 0
        self._versions = 100
        for thing in (cluster_set(), binding(), *things):
            self.set(thing)
        self.core.complete = ready

    # ---- what others do

    def set(self, thing: Thing) -> None:
        """Made or changed by somebody else."""
        if isinstance(thing, Placement | PlacementDecision):
            thing = self._stamped(thing)
            kept: dict[Key, Any] = (
                self.placements if isinstance(thing, Placement) else self.decisions
            )
            kept[key_of(thing.metadata)] = thing
        self.core.on_object(thing, gone=False)

    def drop(self, thing: Thing) -> None:
        if isinstance(thing, Placement):
            self.placements.pop(key_of(thing.metadata))
        if isinstance(thing, PlacementDecision):
            self.decisions.pop(key_of(thing.metadata))
        self.core.on_object(thing, gone=True)

    def edit(self, wanted: Placement) -> None:
        """A person's edit: the status stays."""
        before = self.placements[key_of(wanted.metadata)]
        self.set(msgspec.structs.replace(wanted, status=before.status))

    def _stamped(self, thing: Any) -> Any:
        self._versions += 1
        metadata = msgspec.structs.replace(thing.metadata, resource_version=str(self._versions))
        return msgspec.structs.replace(thing, metadata=metadata)

    # ---- the evaluator's turn

    def settle(self, rounds: int = 20) -> list[str]:
        """Look and write until nothing is left to do now; what was written."""
        before = len(self.writes)
        for _ in range(rounds):
            if not self.step():
                return self.writes[before:]
        raise AssertionError(f"it never comes to rest: {self.writes[-10:]}")

    def step(self) -> bool:
        """One look at everything that is due; whether anything was written."""
        lots = [self.look(key) for key in self.core.due(self.now_s)]
        lots += [one for one in self.core.tidy(self.now_s) if isinstance(one, WriteDecisions)]
        for lot in lots:
            if lot is not None:
                self.carry_out(lot)
        return any(lots)

    def look(self, key: Key) -> WriteDecisions | None:
        found: WriteDecisions | None = None
        looks = self.core.evaluate(key, self.now_s)
        while (pending := self.core.pending(key)) is not None:
            self.questions += 1
            answer = language().answer(pending.question) if self.answers else None
            self.core.settle(key, pending, answer, self.now_s)
            looks += self.core.evaluate(key, self.now_s) if self.answers else []
        for one in looks:
            if isinstance(one, KubeEvent):
                self.events.append(one)
            else:
                found = one
        return found

    def carry_out(self, lot: WriteDecisions | None) -> str:
        """As the writer does: in order, the first that fails ends it."""
        assert lot is not None
        why = ""
        for write in lot.writes:
            why = self.refuse(write) or self._write(lot.placement, write)
            if why:
                break
        answer = Answer(Outcome.CONFLICT, "Conflict", why) if why else Answer()
        for told in self.core.on_answer(lot, answer, self.now_s):
            if isinstance(told, KubeEvent):
                self.events.append(told)
            else:
                why = self.carry_out(told) or why
        return why

    def _write(self, key: Key, write: Write) -> str:
        match write:
            case PutPage():
                return self._put(key, write)
            case DropPage():
                found = self.decisions.get((key[0], write.name))
                if found is None or not same(found, write.present.resource_version):
                    return "conflict"
                del self.decisions[key[0], write.name]
                self.writes.append(f"delete {write.name}")
                self.core.on_deleted((key[0], write.name))
                self.core.on_object(found, gone=True)
                return ""
            case PutStatus():
                placement = self.placements.get(key)
                if placement is None or not same(placement, write.present.resource_version):
                    return "conflict"
                status = msgspec.to_builtins(placement.status) | dict(write.status)
                changed = msgspec.convert(status, type(placement.status))
                placement = self._stamped(msgspec.structs.replace(placement, status=changed))
                self.placements[key] = placement
                self.writes.append(f"status {key[1]}")
                self.core.on_status(placement)
                self.core.on_object(placement, gone=False)
                return ""
            case PutSlice():
                return self._put_slice(key, write)
            case DropSlice():
                found_slice = self.slices.pop((key[0], write.name))
                self.writes.append(f"delete {write.name}")
                self.core.on_slice_deleted(key[0], write)
                self.core.on_object(found_slice, gone=True)
                return ""

    def _put_slice(self, key: Key, write: PutSlice) -> str:
        place = (key[0], write.name)
        found = self.slices.get(place)
        if (found is None) != (write.present is None):
            return "conflict"
        self.writes.append(f"{'create' if found is None else 'write'} {write.name}")
        metadata = {"name": write.name, "namespace": key[0], **write.body["metadata"]}
        written = self._stamped(
            msgspec.convert({**write.body, "metadata": metadata}, DecisionSlice)
        )
        self.slices[place] = written
        self.core.on_slice(written)
        self.core.on_object(written, gone=False)
        return ""

    def _put(self, key: Key, page: PutPage) -> str:
        place = (key[0], page.name)
        found = self.decisions.get(place)
        if page.present is None:
            if found is not None:
                return "already exists"
            found = PlacementDecision()
            body: dict[str, Any] = {"metadata": {"name": page.name, "namespace": key[0]}}
            self.writes.append(f"create {page.name}")
        elif found is None or not same(found, page.present.resource_version):
            return "conflict"
        else:
            body = msgspec.to_builtins(found)
            notes_only = page.status is None and list(page.metadata or ()) == ["annotations"]
            self.writes.append(f"{'note' if notes_only else 'write'} {page.name}")
        for field, value in (page.metadata or {}).items():
            if isinstance(value, dict):
                merged = body["metadata"].get(field, {}) | value
                value = {name: told for name, told in merged.items() if told is not None}
            body["metadata"][field] = value
        if page.status is not None:
            body["status"] = dict(page.status)
        written = self._stamped(msgspec.convert(body, PlacementDecision))
        self.decisions[place] = written
        self.core.on_seen(written)
        self.core.on_object(written, gone=False)
        return ""

    # ---- what there is to see

    def pages(self, placement: str = "p") -> list[str]:
        """The clusters of each page, in order."""
        numbers = {
            int(name.rpartition("-")[2]): decision
            for (_, name), decision in self.decisions.items()
            if name.startswith(f"{placement}-decision-")
        }
        return [",".join(numbers[number].clusters) for number in sorted(numbers)]

    def condition(self, type: str, placement: str = "p") -> tuple[str, str]:
        """(status, reason)."""
        for one in self.placements[NAMESPACE, placement].status.conditions or ():
            if one.type == type:
                return one.status, one.reason
        return "", ""

    def told(self, reason: str) -> list[str]:
        return [event.note for event in self.events if event.reason == reason]


def same(found: Placement | PlacementDecision, version: str) -> bool:
    return found.metadata.resource_version == version


def joined(names: Iterable[str]) -> str:
    return ",".join(names)
