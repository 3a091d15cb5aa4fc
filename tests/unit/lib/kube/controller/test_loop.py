"""The loop around a small core: widgets are kept at the size that they wish for."""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.controller.aside import Phase, SetAside
from berthmaster.lib.kube.controller.loop import Controller
from berthmaster.lib.kube.controller.shell_contract import Answer, KubeEvent, Outcome
from berthmaster.lib.kube.controller.watch import Watched
from berthmaster.lib.kube.controller.writer import Writer
from berthmaster.lib.kube.errors import Conflict
from berthmaster.lib.kube.objects import key_of
from berthmaster.lib.runtime.candidacy import Record
from berthmaster.lib.runtime.health import Health
from berthmaster.lib.runtime.lease import Lease, Outdated
from berthmaster.lib.runtime.log import Log
from berthmaster.lib.runtime.metrics import Metrics
from berthmaster.lib.runtime.service import Context
from berthmaster.lib.runtime.settings import CommonSettings, load
from tests.bus.tools import story
from tests.support.patience import hang_s, until
from tests.unit.lib.kube.stage import WIDGETS, Stage, Widget

Key = tuple[str, str]
WISH = 7


class Resize(NamedTuple):
    widget: Widget


class Keeper:
    """Wants every widget at one size; raises on those whose parts say so."""

    def __init__(self) -> None:
        self.aside = SetAside()
        self.widgets: dict[Key, Widget] = {}
        self.busy: set[Key] = set()
        self.begun = 0
        self.answers: list[tuple[str, Answer]] = []
        self.dirty = False

    def on_object(self, widget: Widget, *, gone: bool) -> None:
        if "poison" in widget.spec.parts:
            raise ValueError("poisoned")
        self.dirty = True
        key = key_of(widget.metadata)
        if gone:
            self.widgets.pop(key, None)
        else:
            self.widgets[key] = widget

    def begin(self) -> None:
        self.begun += 1

    def wake_at_s(self) -> float:
        return 0.0 if self.dirty else float("inf")

    def act(self, now_s: float) -> list[Resize | KubeEvent]:
        self.dirty = False
        out: list[Resize | KubeEvent] = []
        for key, widget in sorted(self.widgets.items()):
            with self.aside.trying(Phase.ACTING, WIDGETS, widget.metadata):
                if "odd" in widget.spec.parts:
                    raise ZeroDivisionError
                if widget.spec.size != WISH and key not in self.busy:
                    self.busy.add(key)
                    out.append(Resize(widget))
        return out

    def on_answer(self, write: Resize, answer: Answer, now_s: float) -> list[Resize | KubeEvent]:
        key = key_of(write.widget.metadata)
        self.busy.discard(key)
        self.answers.append((key[1], answer))
        if "sulky" in write.widget.spec.parts:
            raise RuntimeError("an answer that nobody expects")
        self.dirty = not answer.done
        meta = write.widget.metadata
        return [KubeEvent(WIDGETS, meta, False, "Resized", "to 7")] if answer.done else []


class WidgetWriter(Writer[Resize]):
    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self.gate = asyncio.Event()  # writes wait for it
        self.gate.set()
        self.way_back = asyncio.Event()  # and answers for this
        self.way_back.set()
        self.refusals: list[Exception] = []  # each refuses one write

    async def write(self, write: Resize) -> Answer:
        await self.gate.wait()
        if self.refusals:
            raise self.refusals.pop(0)
        meta = write.widget.metadata
        found = await self.client.merge_patch(
            WIDGETS.path(namespace=meta.namespace, name=meta.name),
            {"spec": {"size": WISH, "parts": list(write.widget.spec.parts)}},
            Widget,
            resource_version=meta.resource_version,
        )
        await self.way_back.wait()
        return Answer(found=found)


class Memory:
    def __init__(self) -> None:
        self.record: Record | None = None

    async def read(self) -> Record | None:
        return self.record

    async def write(self, over: Record | None, holder: str, ttl_s: float, *, taken: bool) -> Record:
        if over != self.record:
            raise Outdated
        version = str(int(over.version) + 1 if over is not None else 1)
        self.record = Record(version, holder, ttl_s, 1)
        return self.record

    async def release(self, over: Record) -> None:
        self.record = over._replace(holder="", version=f"{over.version}0")


class Widgets(Controller[Resize]):
    def __init__(self, ctx: Context[Any], client: Client, memory: Memory, *, quiet: bool) -> None:
        self.keeper = Keeper()
        self.verbs = WidgetWriter(client)
        super().__init__(ctx, client, self.keeper, self.verbs, name="widgets", quiet=quiet)
        self.watches((Watched(WIDGETS, Widget),), absent_s=0.1)
        self._memory = memory

    def begin(self) -> None:
        self.start()
        self.lead_by(
            Lease(
                self._memory,
                "widgets",
                "one",
                ttl_s=4.0,  # a busy machine may be late
                log=self.ctx.log,
                on_gained=lambda _: self.wake(),
            )
        )

    def on_object(self, one: Watched, thing: Any, gone: bool) -> None:
        self.keeper.on_object(thing, gone=gone)

    def about(self, write: Resize) -> str:
        return write.widget.metadata.name


class Room:
    """A controller at work, and what it logs."""

    def __init__(self, widgets: Widgets, memory: Memory, lines: io.BytesIO) -> None:
        self.widgets, self.memory, self._lines = widgets, memory, lines
        self.keeper = widgets.keeper

    def logged(self, event: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self._lines.getvalue().splitlines()]
        return [line for line in lines if line["event"] == event]

    def figure(self, name: str, **labels: str) -> float | None:
        registry = self.widgets.ctx.metrics.registry
        return registry.get_sample_value(f"berth_toys_{name}", labels)


@asynccontextmanager
async def controlling(stage: Stage, *, quiet: bool = False) -> AsyncIterator[Room]:
    lines = io.BytesIO()
    ctx = Context(
        "toys",
        load(CommonSettings, "toys"),
        log=Log("toys", stream=lines),
        metrics=Metrics("toys"),
        health=Health(),
    )
    async with await stage.client() as client:
        memory = Memory()
        widgets = Widgets(ctx, client, memory, quiet=quiet)
        widgets.begin()
        try:
            yield Room(widgets, memory, lines)
        finally:
            ctx.stopping.set()
            await widgets.finish()
            for task in ctx.tasks:
                task.cancel()
            await asyncio.gather(*ctx.tasks, return_exceptions=True)
            assert ctx.died is None


def size(stage: Stage, name: str) -> int:
    return int(stage.objects["toys", name].get("spec", {}).get("size", 0))


@story
async def test_what_is_asked_for_is_written_and_its_answer_comes_back() -> None:
    async with Stage() as stage:
        await stage.put("a")
        async with controlling(stage) as room:
            await until(lambda: size(stage, "a") == WISH)
            await until(lambda: room.keeper.answers)
            ((name, answer),) = room.keeper.answers
            assert (name, answer.outcome) == ("a", Outcome.DONE)
            assert isinstance(answer.found, Widget)
            await until(lambda: room.logged("kubernetes event queued"))
            assert room.logged("kubernetes event queued")[0]["about"] == "Widget toys/a"
            await stage.put("b")
            await until(lambda: size(stage, "b") == WISH)
            assert (room.keeper.begun, room.figure("acting")) == (1, 1)
            wrote = {"kind": "Resize", "outcome": "done"}
            await until(lambda: room.figure("writes_total", **wrote) == 2)


@story
async def test_what_an_answer_shows_is_heard_in_one_order_with_what_is_watched() -> None:
    """Who took an answer that came late over what the watch had told later knew an old object for
    as long as nobody changed it: a Karmada binding waited so for ever."""
    async with Stage() as stage:
        await stage.put("a", metadata={"annotations": {"tool": "x" * 5000}})
        async with controlling(stage) as room:
            heard: list[int] = []
            notes: list[str] = []
            hear = room.keeper.on_object

            def on_object(widget: Widget, *, gone: bool) -> None:
                heard.append(int(widget.metadata.resource_version))
                notes.extend(widget.metadata.annotations.values())
                hear(widget, gone=gone)

            room.keeper.on_object = on_object  # type: ignore[method-assign]

            await until(lambda: room.keeper.answers)
            room.widgets.verbs.way_back.clear()
            await stage.put("a", spec={"size": 1})
            await until(lambda: size(stage, "a") == WISH)
            # Somebody else changes it, and that is told, before the answer is there.
            await stage.put("a", spec={"size": WISH, "parts": ["theirs"]})
            await until(lambda: room.keeper.widgets["toys", "a"].spec.parts == ("theirs",))
            room.widgets.verbs.way_back.set()
            await until(lambda: len(room.keeper.answers) == 2)
            assert room.keeper.widgets["toys", "a"].spec.parts == ("theirs",)
            assert heard == sorted(set(heard))
            assert set(notes) == {""}  # too long to be kept, whoever shows them


@story
async def test_odd_objects_of_every_kind_are_set_aside_and_the_rest_goes_on() -> None:
    """One cannot be decoded, one is not understood, one cannot be handled, one spoils its answer:
    each of them used to end a service."""
    async with Stage() as stage:
        await stage.put("unreadable", spec={"size": "huge"})
        await stage.put("poison", spec={"parts": ["poison"]})
        await stage.put("odd", spec={"parts": ["odd"]})
        await stage.put("sulky", spec={"parts": ["sulky"]})
        await stage.put("good")
        async with controlling(stage) as room:
            await until(lambda: size(stage, "good") == size(stage, "sulky") == WISH)
            await until(lambda: len(room.logged("kubernetes event queued")) == 4)
            told = {
                line["about"]: line["reason"] for line in room.logged("kubernetes event queued")
            }
            assert told == {
                "Widget toys/unreadable": "Unreadable",
                "Widget toys/poison": "NotUnderstood",
                "Widget toys/odd": "CannotBeHandled",
                "Widget toys/good": "Resized",
            }
            assert len(room.logged("answer not handled")) == 1
            await until(lambda: room.figure("set_aside", resource="widgets") == 3)
            parts: Any = room.widgets.ctx.health.readiness()[1]["parts"]
            assert parts["odd objects"] == {"ok": True, "why": "3 cannot be handled"}

            # Whoever is put right is served like any other.
            for name in ("unreadable", "poison", "odd"):
                await stage.put(name, spec={"parts": []})
            await until(
                lambda: all(size(stage, n) == WISH for n in ("unreadable", "poison", "odd"))
            )
            await until(lambda: room.figure("set_aside", resource="widgets") == 0)


@story
async def test_who_is_quiet_tells_its_log_only() -> None:
    """A service that may write nothing must not be refused an Event a second."""
    posted: dict[bool, list[str]] = {}
    for quiet in (True, False):
        async with Stage() as stage:
            await stage.put("a")
            async with controlling(stage, quiet=quiet) as room:
                await until(lambda room=room: room.logged("kubernetes event queued"))  # type: ignore[misc]
            # What was told has been written, or will not be, when it has stopped.
            posted[quiet] = [path for verb, path, _ in stage.requests if verb == "POST"]
    assert posted[True] == []
    assert [path.rpartition("/")[2] for path in posted[False]] == ["events"]


@story
async def test_asked_to_stop_it_finishes_what_is_under_way_and_gives_the_lease_back() -> None:
    async with Stage() as stage:
        await stage.put("a")
        async with controlling(stage) as room:
            room.widgets.verbs.gate.clear()
            await until(lambda: room.keeper.busy)
            room.widgets.ctx.stopping.set()
            finishing = asyncio.create_task(room.widgets.finish())
            await stage.put("b")  # too late
            await asyncio.sleep(0.05)
            assert room.memory.record is not None
            assert room.memory.record.holder.startswith("one#"), "nobody else may begin yet"
            room.widgets.verbs.gate.set()
            await finishing
            assert (size(stage, "a"), size(stage, "b")) == (WISH, 0)
            assert room.memory.record.holder == ""


@story
async def test_a_write_that_hangs_is_cut_off_in_time(monkeypatch: Any) -> None:
    monkeypatch.setattr("berthmaster.lib.kube.controller.loop.FINISH_S", 0.1)
    async with Stage() as stage:
        await stage.put("a")
        async with controlling(stage) as room:
            room.widgets.verbs.gate.clear()
            await until(lambda: room.keeper.busy)
            room.widgets.ctx.stopping.set()
            async with asyncio.timeout(hang_s()):
                await room.widgets.finish()
            assert size(stage, "a") == 0
            assert room.memory.record is not None
            assert room.memory.record.holder == ""


@story
async def test_a_conflict_is_an_answer_and_what_waits_while_another_acts_is_not_written() -> None:
    async with Stage() as stage:
        await stage.put("a")
        async with controlling(stage) as room:
            await until(lambda: size(stage, "a") == WISH)
            room.widgets.verbs.refusals = [Conflict(409, "Conflict", "modified", "/a")]
            await stage.put("a", spec={"size": 1})
            await until(lambda: size(stage, "a") == WISH and len(room.keeper.answers) == 3)
            outcomes = [answer.outcome for _, answer in room.keeper.answers]
            assert outcomes == [Outcome.DONE, Outcome.CONFLICT, Outcome.DONE]

            # Another takes the lease: what has not had its turn yet is not written.
            assert room.memory.record is not None
            room.memory.record = room.memory.record._replace(holder="thief#1", version="99")
            await until(lambda: not room.widgets.lease or not room.widgets.lease.held)
            answer = await room.widgets.verbs.carry_out(Resize(room.keeper.widgets["toys", "a"]))
            assert (answer.outcome, answer.reason) == (Outcome.LATER, "NotActing")
