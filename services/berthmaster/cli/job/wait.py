"""`berth wait`: wait until jobs run or have ended, and report by exit code, command or webhook."""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import click

from berthmaster.cli.completion import ANY
from berthmaster.cli.job.commands import ENDINGS
from berthmaster.cli.job.selection import Selection, selection_of, selection_options
from berthmaster.cli.output.errors import complain
from berthmaster.cli.session import EXIT_FAILED, EXIT_TOO_LATE, Session, bus_command, usage

if TYPE_CHECKING:
    from berthmaster.client import Client, SeenEvent
    from berthmaster.lib.messages.api import WorkloadView


Goal = Literal["running", "ended"]
_SOON_S: Final = 10.0
_PAUSE_S: Final = 0.05


class Waiting:
    """Jobs that have not reached the goal, with their events shown meanwhile."""

    def __init__(
        self, session: Session, berth: "Client", open_: set[str], goal: Goal = "ended"
    ) -> None:
        self.bad = 0  # number of jobs that failed or were cancelled
        self.open = open_  # the other jobs
        self.views: dict[str, WorkloadView] = {}  # job -> view on reaching the goal
        self._session = session
        self._berth = berth
        self._states = {*ENDINGS, "running"} if goal == "running" else set(ENDINGS)

    async def check(self, name: str) -> "WorkloadView | None":
        """Return the workload if it has reached the goal, else None.

        The gateway is queried, because an event alone does not show whether it is applied. Raises
        RefusedError for an unknown workload.
        """
        view = (await self._berth.get(name)).workload
        if view.state not in self._states:
            return None
        self.open.discard(name)
        self.views[name] = view
        self.bad += view.state in ENDINGS and view.state != "succeeded"
        return view

    async def follow_all(self, since: int) -> int:
        """Show events from ``since`` until all reach the goal; return the number of failed ones."""
        if self.open:
            await self._follow(self._berth.watch(since=since))
        return self.bad

    async def _check_soon(self, name: str) -> bool:
        """Check a workload, and retry, because the gateway may receive an event later."""
        deadline = time.monotonic() + _SOON_S
        while not await self.check(name):
            if time.monotonic() > deadline:
                return False  # a stale event: the workload continues
            await asyncio.sleep(_PAUSE_S)
        return True

    async def _follow(self, events: "AsyncGenerator[SeenEvent, None]") -> None:
        """Show events until all workloads reach the goal."""
        from berthmaster.cli.job.events import event_line
        from berthmaster.lib.messages.families import event_kind

        async with aclosing(events):
            async for seen in events:
                event = seen.event
                if event.id not in self.open or event.tenant != self._berth.tenant:
                    continue
                self._session.out.item(
                    seen,
                    lambda seen=seen: event_line(  # type: ignore[misc]
                        seen.event, seen.stored_at_s, width=self._session.out.width
                    ),
                )
                reached = event_kind(event) in self._states
                if reached and await self._check_soon(event.id) and not self.open:
                    return


@click.command()
@click.argument("workloads", nargs=-1, metavar="[WORKLOAD]...", type=ANY)
@selection_options("All that there are now with")
@click.option(
    "--until", type=click.Choice(("ended", "running")), default="ended", show_default=True
)
@click.option(
    "--at-most", metavar="TIME", help="Time limit, such as 90s or 2h; exit code 5 afterwards."
)
@click.option(
    "--then",
    metavar="COMMAND",
    help=(
        "Shell command to run afterwards, whatever the result: BERTH_OUTCOME is ok, failed or "
        "too_late, BERTH_WORKLOADS has the ids, and standard input has the result as JSON."
    ),
)
@click.option("--notify", metavar="URL", help="URL to POST the same JSON to afterwards.")
@click.option(
    "--notify-key",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Key file for a signature (HMAC-SHA256) in the header Berth-Signature.",
)
@bus_command
async def wait(
    session: Session,
    workloads: tuple[str, ...],
    set_name: str,
    label: tuple[str, ...],
    until: Goal,
    at_most: str | None,
    then: str | None,
    notify: str | None,
    notify_key: Path | None,
) -> int:
    """Wait for jobs, and show their events meanwhile.

    Exit code 0: all jobs run or have succeeded. 1: a job failed or was cancelled, or a notification
    failed. 5: the time limit passed first.
    """
    from berthmaster.cli.values import WrongInput, parse_duration_s

    selected = selection_of(set_name, label)
    if not (workloads or selected):
        usage("name workloads, or say --set or --label")
    try:
        limit_s = None if at_most is None else parse_duration_s(at_most)
    except WrongInput as error:
        usage(f"--at-most: {error}")
    notifier = _Notifier(then, notify, notify_key)
    async with session.client() as berth:
        names = await _names(berth, workloads, selected)
        if not names:
            complain(f"there is no workload of {selected}")
            return EXIT_FAILED
        waiting = Waiting(session, berth, set(names), until)
        code = await _waited(session, berth, waiting, names, limit_s)
        if code == EXIT_TOO_LATE:
            missing = ", ".join(sorted(waiting.open))
            complain(f"not {until} within {at_most}: {missing}")
        if notifier and not await notifier.notify(berth, waiting, names, code):
            code = code or EXIT_FAILED
    return code


async def _names(
    berth: "Client", workloads: tuple[str, ...], selected: Selection
) -> tuple[str, ...]:
    found = [view.id async for view in selected.views(berth)] if selected else []
    return tuple(sorted({*workloads, *found}))


async def _waited(
    session: Session,
    berth: "Client",
    waiting: Waiting,
    names: Sequence[str],
    limit_s: float | None,
) -> int:
    """Wait, and return the exit code."""
    from berthmaster.cli.output.terminal import safe

    try:
        async with asyncio.timeout(limit_s):
            since = await berth.position()
            for name in names:
                # Later events do not include earlier ones.
                if (view := await waiting.check(name)) is not None:
                    text = f"{name} is {view.state}"
                    session.out.item(view, lambda text=text: safe(text))  # type: ignore[misc]
            bad = await waiting.follow_all(since)
    except TimeoutError:
        return EXIT_TOO_LATE
    return EXIT_FAILED if bad else 0


class _Notifier:
    """Runs the command and sends the notice at the end. Wrong options are refused before the
    wait."""

    def __init__(self, then: str | None, url: str | None, key_file: Path | None) -> None:
        from berthmaster.cli.job import notifying
        from berthmaster.lib.runtime.webhook import KeyWrong, read_key

        if url is not None and (fault := notifying.url_fault(url)):
            usage(f"--notify: {fault}")
        if key_file is not None and url is None:
            usage("--notify-key: it signs what --notify sends; give that too")
        try:
            self._key = b"" if key_file is None else read_key(key_file)
        except KeyWrong as error:
            usage(f"--notify-key: {error}")
        self._then = then
        self._url = url

    def __bool__(self) -> bool:
        return bool(self._then or self._url)

    async def notify(
        self, berth: "Client", waiting: Waiting, names: Sequence[str], code: int
    ) -> bool:
        """Return whether the command and the notice succeeded."""
        from berthmaster.cli.job import notifying

        outcome = {0: "ok", EXIT_TOO_LATE: "too_late"}.get(code, "failed")
        endings = []
        for name in names:
            view = waiting.views.get(name) or (await berth.get(name)).workload
            endings.append(
                notifying.Ending(
                    tenant=view.tenant,
                    id=view.id,
                    state=view.state,
                    cluster=view.cluster,
                    reason=view.reason,
                )
            )
        notice = notifying.notice_of(endings, outcome)
        succeeded = True
        if self._url:
            try:
                await asyncio.to_thread(notifying.post, self._url, notice, self._key)
            except notifying.NotSent as error:
                complain(f"--notify: nobody was told: {error}")
                succeeded = False
        if self._then:
            ended = await asyncio.to_thread(notifying.run_command, self._then, notice)
            if ended:
                complain(f"--then ended with exit code {ended}")
                succeeded = False
        return succeeded
