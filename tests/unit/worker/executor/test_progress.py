"""What jobs say of themselves: read from their logs, told to the log of events, seldom."""

import asyncio
from collections.abc import Sequence
from typing import Any

from berthmaster.lib.kube.objects import Metadata
from berthmaster.lib.lifecycle.instructions import (
    Answered,
    Append,
    Refused,
    Reload,
    Reloaded,
    Stored,
)
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.lifecycle.workload import PROGRESS_EVERY_S
from berthmaster.lib.messages.workload import (
    Checkpoint,
    Checkpointed,
    Evicted,
    EvictionRequested,
    Progress,
    Progressed,
)
from berthmaster.worker.executor.core.attempt_status import Scene, last_words
from berthmaster.worker.executor.core.cluster_protocol import (
    Attempt,
    PodEvent,
    PodsGone,
    PodsQuiet,
    PodsRunning,
    PodsSaid,
    StopPods,
)
from berthmaster.worker.executor.core.events import HintSeen, Instruction, Tick
from berthmaster.worker.executor.core.executor import CHECKPOINT_EVERY_S, MAX_REFUSALS
from berthmaster.worker.executor.core.objects import (
    ContainerState,
    ContainerStatus,
    PodObject,
    PodStatus,
    Terminated,
)
from berthmaster.worker.executor.progress import (
    LOOK_BYTES,
    MOST_SILENT_S,
    TAIL_LINES,
    ProgressReader,
)
from tests.support.patience import hang_s
from tests.unit.worker.executor.test_core import NAME, PODS, TRAIN, running_executor, work

SAVED = Checkpoint(step=400, uri="s3://runs/train/400")
LATER = Checkpoint(step=500, uri="s3://runs/train/500")
HEAD: dict[str, Any] = {
    "tenant": "acme",
    "id": "train",
    "by": NAME,
    "cluster": "berlin",
    "attempt": 1,
}


def appended(steps: list[Instruction]) -> list[object]:
    return [step.event for step in steps if isinstance(step, Append)]


def test_progress_is_told_at_once_and_then_seldom_with_the_time_that_is_left_by_then() -> None:
    executor = running_executor()  # at 103, the log at 7
    told = executor.handle(PodsSaid(TRAIN, Progress(step=1, eta_s=50)), 104)
    assert appended(told) == [
        Progressed(**HEAD, after=7, at_s=104, progress=Progress(step=1, eta_s=50))
    ]
    assert executor.handle(Answered(ref="3", outcome=Stored(8)), 104.5) == []

    # Of what is said meanwhile the newest is told when it is due, with what is left then.
    assert executor.handle(PodsSaid(TRAIN, Progress(step=2, eta_s=49)), 105) == []
    assert executor.handle(PodsSaid(TRAIN, Progress(step=3, eta_s=48)), 106) == []
    assert executor.handle(Tick(), 110) == []
    due_s = 104.5 + PROGRESS_EVERY_S
    assert appended(executor.handle(Tick(), due_s)) == [
        Progressed(
            **HEAD,
            after=8,
            at_s=due_s,
            progress=Progress(step=3, eta_s=48 - due_s + 106),
            age_s=due_s - 106,
        )
    ]
    # Refused: somebody wrote first. It is read again and that word is left; the next one is told.
    (read,) = executor.handle(Answered(ref="4", outcome=Refused()), 115)
    assert isinstance(read, Reload)
    again = work(State.RUNNING, running_at_s=103.0)
    assert executor.handle(Reloaded(ref="5", workload=again), 115) == []
    assert len(appended(executor.handle(PodsSaid(TRAIN, Progress(step=4)), 116))) == 1


def test_the_last_checkpoint_is_told_before_the_end_and_one_that_is_known_is_not() -> None:
    executor = running_executor()
    first = executor.handle(PodsSaid(TRAIN, checkpoint=SAVED), 104)
    assert appended(first) == [Checkpointed(**HEAD, after=7, at_s=104, checkpoint=SAVED)]
    assert executor.handle(Answered(ref="3", outcome=Stored(8)), 104) == []
    assert executor.handle(PodsSaid(TRAIN, checkpoint=SAVED), 120) == []

    # Another, while the first was told just now; then it is asked to go.
    executor.handle(Answered(ref="3", outcome=Stored(8)), 104)
    assert executor.handle(PodsSaid(TRAIN, checkpoint=LATER), 104 + CHECKPOINT_EVERY_S / 2) == []
    wish = EvictionRequested(
        tenant="acme", id="train", after=8, at_s=0, by="resolver", cluster="berlin", attempt=1,
        reason="room for another", decision=2,
    )  # fmt: skip
    steps = executor.handle(HintSeen(2, wish, 9), 110)
    assert StopPods(TRAIN, "room for another") in steps
    (saved,) = appended(executor.handle(PodsGone(TRAIN, "room for another"), 111))
    assert saved == Checkpointed(**HEAD, after=9, at_s=111, checkpoint=LATER)
    (ending,) = appended(executor.handle(Answered(ref="4", outcome=Stored(10)), 112))
    assert isinstance(ending, Evicted)
    assert ending.after == 10


def test_a_checkpoint_that_the_log_will_not_have_is_left_after_some_tries() -> None:
    executor = running_executor()
    steps = executor.handle(PodsSaid(TRAIN, checkpoint=SAVED), 104)
    for at_s in range(105, 105 + MAX_REFUSALS):
        (tried,) = steps
        assert isinstance(tried, Append)
        (read,) = executor.handle(Answered(ref=tried.ref, outcome=Refused()), at_s)
        assert isinstance(read, Reload)
        again = work(State.RUNNING, running_at_s=103.0)
        steps = executor.handle(Reloaded(ref=read.ref, workload=again), at_s)
    assert steps == []


def test_a_termination_message_is_a_pods_last_word() -> None:
    def scene(message: str) -> Scene:
        ended = Terminated(exit_code=143, message=message)
        status = ContainerStatus(name="main", state=ContainerState(terminated=ended))
        found = PodObject(
            metadata=Metadata(name="p"),
            status=PodStatus(phase="Failed", container_statuses=(status,)),
        )
        return Scene(attempt=TRAIN, wanted={"main": 1}, pods={"p": found})

    line = 'BERTH {"checkpoint": {"step": 400, "uri": "s3://runs/train/400"}}'
    assert last_words(scene(f"saved\n{line}\n")) == PodsSaid(TRAIN, checkpoint=SAVED)
    assert last_words(scene("killed")) is None
    secret = line.replace("runs", "me:secret@runs")
    assert last_words(scene(secret)) is None


class Logs:
    """Logs that say what the test has them say."""

    def __init__(self) -> None:
        self.opened: list[tuple[Attempt, float | None, bool]] = []
        self.text: list[bytes] = []
        self.more = asyncio.Event()

    async def pods(self, attempt: Attempt) -> Sequence[str]:
        return ["train-1-0", "train-1-1"]

    async def open(
        self, attempt: Attempt, pod: str, *, since_s: float | None, tail: int | None, follow: bool
    ) -> "Log":
        assert pod == "train-1-0"
        self.opened.append((attempt, since_s, follow))
        return Log(self, follow=follow)


class Log:
    def __init__(self, logs: Logs, *, follow: bool) -> None:
        self.logs = logs
        self.follow = follow
        self.over = False

    async def read(self) -> bytes:
        if self.over:
            return b""
        if self.follow:
            await self.logs.more.wait()
        self.over = True
        return b"".join(self.logs.text)

    def close(self) -> None:
        pass


def test_logs_are_looked_at_in_turn_and_who_is_asked_to_go_is_heard_to_its_end() -> None:
    asyncio.run(_looked_at())


async def _looked_at() -> None:
    logs, told = Logs(), list[PodEvent]()
    reader = ProgressReader(logs, looks_per_s=1, clock=lambda: 1_795_514_410.0)
    reader.start(told.append)
    others = [TRAIN._replace(id=f"job-{n}") for n in range(3)]
    for attempt in (TRAIN, *others):
        reader.pass_on(PodsRunning(attempt, PODS))
    told.clear()
    loop = asyncio.get_running_loop()
    for each in reader._watched.values():
        each.due_s = loop.time()  # its time has come

    # One look at each beat, however many are due: whoever waits longest is the next.
    logs.text = [b'2026-11-24T10:00:00Z BERTH {"step": 5, "eta_s": 60}\n']
    for _ in range(2):
        reader._look_at_those_due()
        await asyncio.gather(*(one.looks for one in reader._watched.values() if one.looks))
    assert [attempt for attempt, _, _ in logs.opened] == [TRAIN, others[0]]
    assert told[0] == PodsSaid(TRAIN, Progress(step=5, eta_s=50), age_s=10.0)  # eta was 60 then

    # Nobody looks at the same lines twice, and who is silent is looked at ever more seldom.
    one = reader._watched[TRAIN]
    told.clear()
    one.quiet_since_s -= 90
    await reader._look(one)
    (quiet,) = told
    assert isinstance(quiet, PodsQuiet)
    assert 90 <= quiet.quiet_s < 90 + hang_s()

    # A look that may have skipped lines proves no silence.
    told.clear()
    logs.text = [b"2026-11-24T10:00:01Z hello\n"] * TAIL_LINES
    await reader._look(one)
    assert told == []
    assert loop.time() - one.quiet_since_s < 90
    one.quiet_since_s -= 90
    logs.text = [b"2026-11-24T10:00:01.5Z " + b"x" * LOOK_BYTES + b"\n"]
    await reader._look(one)
    assert told == []
    assert loop.time() - one.quiet_since_s < 90
    silent = reader._watched[others[1]]
    logs.text = [b"2026-11-24T10:00:00Z hello\n"]
    for _ in range(8):
        await reader._look(silent)
    told.clear()
    assert silent.pause_s == MOST_SILENT_S

    # Asked to go it writes its last checkpoint: that it is gone is told after that.
    reader.follow(TRAIN)
    reader.pass_on(PodsGone(TRAIN, "room"))
    await asyncio.sleep(0)
    assert told == []
    logs.text = [
        b'2026-11-24T10:00:09Z BERTH {"checkpoint": {"step": 400, "uri": "s3://runs/train/400"}}\n'
    ]
    logs.more.set()
    async with asyncio.timeout(hang_s()):
        while len(told) < 2:
            await asyncio.sleep(0)
    assert told == [PodsSaid(TRAIN, None, SAVED), PodsGone(TRAIN, "room")]
    assert logs.opened[-1] == (TRAIN, 1_795_514_401.0, True)
