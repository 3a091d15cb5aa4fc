"""Start, run and end of every service.

`run` reads the settings, opens log, metrics and health, and calls the service's `main` with a
Context. SIGTERM and SIGINT only set `stopping`. `main` then finishes its work and returns. Four
nested limits make the end certain::

    0 s     stopping is set, /readyz answers 503
    4.0 s   main or tasks still run: logged by name, then cancelled
    4.5 s   they ignore the cancellation: abandoned, exit code 4
    5.0 s   the loop itself is stuck: a watchdog thread ends the process, exit code 4

Tasks are owned. If a task dies, the service logs the error, drains and exits with 1. A partly
working service that looks alive is worse than a missing service. The supervisor restarts the
process.
"""

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, Generic, NoReturn, TypeVar

import click
import uvloop

from berthmaster.lib.runtime.errors import EXIT_DIED, EXIT_LATE, EXIT_OK, CannotStart, ServiceFault
from berthmaster.lib.runtime.health import Health
from berthmaster.lib.runtime.http import StatusServer
from berthmaster.lib.runtime.log import Bridge, Log
from berthmaster.lib.runtime.metrics import Metrics
from berthmaster.lib.runtime.process_setup import raise_open_files, reduce_garbage_scans
from berthmaster.lib.runtime.settings import (
    CommonSettings,
    ServiceCommand,
    command,
    describe,
    unknown_variables,
)

S = TypeVar("S", bound=CommonSettings)
T = TypeVar("T")

DRAIN_LIMIT_S = 4.0
CANCEL_LIMIT_S = 0.5
HARD_LIMIT_S = 5.0
BEAT_S = 1.0


class Context(Generic[S]):
    """The interface between a service and the process, passed to `main`."""

    def __init__(
        self,
        name: str,
        settings: S,
        *,
        log: Log,
        metrics: Metrics,
        health: Health,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.name = name
        self.settings = settings
        self.log = log
        self.metrics = metrics
        self.health = health
        self.stopping = asyncio.Event()
        # exception of the first task that died; None = no task died
        self.died: BaseException | None = None
        self._clock = clock
        self._tasks: set[asyncio.Task[Any]] = set()

    def now(self) -> float:
        """Return the wall clock in seconds. Services read the time only here."""
        return self._clock()

    def spawn(self, coro: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Start a task that the service owns. If the task raises, the service drains and exits with
        1.

        Tasks may return. Those still running when `main` returns are cancelled.
        """
        task = asyncio.create_task(coro, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    @property
    def tasks(self) -> frozenset[asyncio.Task[Any]]:
        return frozenset(self._tasks)

    def _on_task_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        if error := task.exception():
            if isinstance(error, ServiceFault):
                self.log.error("cannot_go_on", why=str(error), task=task.get_name())
            else:
                self.log.error("task_died", error=error, task=task.get_name())
            self.died = self.died or error
            self.stopping.set()


@dataclass(frozen=True)
class Service(Generic[S]):
    """A service for `berth serve`: name, settings, and main function."""

    name: str
    settings: type[S]
    main: Callable[[Context[S]], Awaitable[None]]


def command_of(service: Service[S]) -> ServiceCommand:
    """Return the command `berth serve NAME`. The process ends with the service's exit code."""

    def serve(settings: S) -> None:
        click.get_current_context().exit(_run(service, settings))

    doc = (sys.modules[service.main.__module__].__doc__ or "").partition("\n\n")[0]
    return command(service.settings, service.name, serve, doc)


def run(service: Service[S], argv: Sequence[str]) -> NoReturn:
    """Run a service as this process. The process ends with the service's exit code (see
    errors.py).
    """
    command_of(service).main(list(argv), prog_name=f"berth serve {service.name}")


def _run(service: Service[S], settings: S) -> int:
    log = Log(service.name, level=settings.log_level, format=settings.log_format)
    for variable in unknown_variables(service.settings, service.name):
        log.warning("unknown_setting", variable=variable, why="no setting has this name")
    health = Health()
    metrics = Metrics(service.name)
    bridge = Bridge(log)
    logging.getLogger().addHandler(bridge)
    open_files = raise_open_files()
    status: StatusServer | None = None
    try:
        if settings.http_port >= 0:
            status = StatusServer(settings.http_host, settings.http_port, health, metrics, log)
        log.info(
            "starting",
            pid=os.getpid(),
            http_port=status.port if status else None,
            open_files=open_files,
            settings=describe(settings),
        )
        reduce_garbage_scans()
        process = _Process(service, settings, log, metrics, health)
        code = process.run()
        log.info("stopped", exit_code=code)
        return code
    except CannotStart as error:
        log.error("cannot_start", why=str(error))
        return error.exit_code
    finally:
        if status:
            status.close()
        logging.getLogger().removeHandler(bridge)


class _Process(Generic[S]):
    """A run of a service: event loop, signals and end."""

    def __init__(
        self, service: Service[S], settings: S, log: Log, metrics: Metrics, health: Health
    ) -> None:
        self._service = service
        self._settings = settings
        self._log = log
        self._metrics = metrics
        self._health = health
        self._watchdog: threading.Timer | None = None
        self._context: Context[S] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_stop_logged = False
        self._stop_signal = ""  # the signal that requested the stop, perhaps before the loop runs

    def run(self) -> int:
        """Run the event loop until the service has ended."""
        previous = {
            number: signal.signal(number, self._on_signal)
            for number in (signal.SIGTERM, signal.SIGINT)
        }
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return runner.run(self._live())
        finally:
            if self._watchdog:
                self._watchdog.cancel()
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # Runs in the main thread between two bytecodes, whatever the loop does. A second call is
        # harmless: a terminal's Ctrl-C and a supervisor's SIGTERM often come together.
        self._stop_signal = self._stop_signal or signal.Signals(number).name
        self._watch()
        if self._loop and self._context:
            self._loop.call_soon_threadsafe(self._stop, self._context, self._stop_signal)

    def _watch(self) -> None:
        """Start the watchdog, which makes the end certain even if the loop is stuck."""
        if self._watchdog is None:
            self._watchdog = threading.Timer(HARD_LIMIT_S, self._give_up)
            self._watchdog.daemon = True
            self._watchdog.start()

    def _stop(self, context: Context[S], why: str) -> None:
        """Log the reason once, and only then set `stopping`."""
        if not self._is_stop_logged:
            self._is_stop_logged = True
            self._log.info("stopping", why=why)
        self._health.stop()
        context.stopping.set()

    def _give_up(self) -> None:
        last = threading.Timer(CANCEL_LIMIT_S, os._exit, (EXIT_LATE,))
        last.daemon = True
        last.start()  # writing to an unread log may block for ever
        self._log.error("drain_limit", limit_s=HARD_LIMIT_S, why="the event loop is stuck")
        os._exit(EXIT_LATE)

    async def _live(self) -> int:
        loop = asyncio.get_running_loop()
        context = Context(
            self._service.name,
            self._settings,
            log=self._log,
            metrics=self._metrics,
            health=self._health,
        )
        loop.set_exception_handler(self._on_loop_error)
        self._loop, self._context = loop, context
        if self._stop_signal:
            self._stop(context, self._stop_signal)
        beat = asyncio.create_task(self._beat(), name="beat")
        main = asyncio.ensure_future(self._service.main(context))
        stop_task = asyncio.create_task(context.stopping.wait(), name="stopping")
        await asyncio.wait({main, stop_task}, return_when=asyncio.FIRST_COMPLETED)
        try:
            return await self._end(context, main)
        finally:
            beat.cancel()
            stop_task.cancel()

    async def _end(self, context: Context[S], main: "asyncio.Future[None]") -> int:
        """Drain: main first, since main may still need tasks, then the remaining tasks."""
        self._watch()
        loop = asyncio.get_running_loop()
        end_s = loop.time() + DRAIN_LIMIT_S
        self._stop(context, self._why(context, main))
        await asyncio.wait({main}, timeout=DRAIN_LIMIT_S)
        if main.done() and context.tasks:
            for task in context.tasks:
                task.cancel()
            await asyncio.wait(context.tasks, timeout=max(0.0, end_s - loop.time()))
        code = self._verdict(context, main) if main.done() else EXIT_LATE
        if not main.done() or context.tasks:
            late = [task.get_name() for task in context.tasks]
            late += [] if main.done() else ["main"]
            self._log.error("drain_limit", limit_s=DRAIN_LIMIT_S, still_running=sorted(late))
            await self._cut(context, main)
            code = EXIT_LATE
        if code == EXIT_OK and context.died:
            return context.died.exit_code if isinstance(context.died, ServiceFault) else EXIT_DIED
        return code

    async def _cut(self, context: Context[S], main: "asyncio.Future[None]") -> None:
        """Cancel the remaining tasks. End the process if some ignore the cancellation."""
        rest: set[asyncio.Future[Any]] = {*context.tasks}
        if not main.done():
            rest.add(main)
        for task in rest:
            task.cancel()
        _, stuck = await asyncio.wait(rest, timeout=CANCEL_LIMIT_S)
        if stuck:
            os._exit(EXIT_LATE)

    def _why(self, context: Context[S], main: "asyncio.Future[None]") -> str:
        if context.died:
            return "a task died"
        return "main returned" if main.done() else "the service asked for it"

    def _verdict(self, context: Context[S], main: "asyncio.Future[None]") -> int:
        """Return the exit code for the way in which main ended."""
        if main.cancelled():
            self._log.error("main_died", why="cancelled from inside")
            return EXIT_DIED
        error = main.exception()
        if error is None or error is context.died:  # the latter is logged and handled as the task's
            return EXIT_OK
        if isinstance(error, ServiceFault):
            self._log.error("cannot_start", why=str(error))
            return error.exit_code
        self._log.error("main_died", error=error)
        return EXIT_DIED

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, details: dict[str, Any]) -> None:
        """Log errors that no task awaited. asyncio would only print them."""
        self._log.error(
            "loop_error", error=details.get("exception"), why=str(details.get("message"))
        )

    async def _beat(self) -> None:
        """Report to Health that the loop runs, and measure the lag."""
        lag = self._metrics.gauge("loop_lag_seconds", "Lag of the event loop in seconds")
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + BEAT_S
            await asyncio.sleep(BEAT_S)
            lag.set(max(0.0, loop.time() - due_s))
            self._health.beat()
