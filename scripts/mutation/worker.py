"""One package's mutants against its tests, in a process of its own.

1. The mutants' modules are woven as they are imported; pytest collects the package's tests once.
2. A fork runs every test, and some seeds of the simulation, with all switches off: it tells which
   of them pass and which mutants' places each executes.
3. For each mutant a fork turns its switch on and runs what executes its place, the quickest first,
   until something fails. A fork that lasts too long is ended, and its mutant counts as caught.

Forks start before any test has run, so no mutant meets what another test left behind; what
functools caches is forgotten between tests, else only the first would execute what it computes. A
mutant whose place is executed by an import has to be there from the start: `alone` runs it.
"""

import contextlib
import functools
import gc
import importlib.abc
import importlib.machinery
import importlib.util
import io
import json
import math
import os
import resource
import select
import signal
import sys
import tempfile
import time
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, settings

from scripts.mutation.mutants import SWITCHES, Mutant, woven

OFF = -1
BASELINE_LIMIT_S = 900.0
LEAST_LIMIT_S = 10.0  # a machine that is busy with other things makes no mutant caught
LIMIT_FACTOR = 4.0  # of what the same tests took without a mutant
MEMORY_BYTES = 8 << 30  # of address space: a loop that never ends may fill a list
WORLDS = "tests.simulation.world"


@dataclass(frozen=True)
class Job:
    """What one process is asked for."""

    mutants: tuple[Mutant, ...]
    sources: dict[str, str]  # of the modules that have mutants
    tests: tuple[str, ...]  # folders
    seeds: int = 0  # of the simulation
    alone: int = OFF  # this mutant is on from the start, and the only one that is asked for
    least_limit_s: float = LEAST_LIMIT_S
    alone_limit_s: float = BASELINE_LIMIT_S
    without: tuple[str, ...] = ()  # tests that fail anyhow


@dataclass(frozen=True)
class Tested:
    """Without a mutant: a test, or one seed of the simulation."""

    test: str
    passed: bool
    took_s: float
    executed: tuple[int, ...]


@dataclass(frozen=True)
class Fate:
    """What became of a mutant: `caught_by` is "" if nothing noticed it."""

    mutant: int
    caught_by: str
    tests: int = 0  # how many executed it
    at_import: bool = False  # not decided yet: it has to run alone


@dataclass(frozen=True)
class Baseline:
    """The tests without a mutant: those that fail are of no use."""

    failing: tuple[str, ...]
    took_s: float


class Switches:
    """Which mutant is on, and which places were executed."""

    def __init__(self, on: int = OFF) -> None:
        self.on = on
        self.executed: set[int] = set()

    def __getitem__(self, mutant: int) -> bool:
        self.executed.add(mutant)
        return mutant == self.on


class Finder(importlib.abc.MetaPathFinder):
    """Gives the modules that have mutants in their woven form; nothing of it is written to disk."""

    def __init__(self, job: Job, switches: Switches) -> None:
        self._sources = job.sources
        self._switches = switches
        self._places: dict[str, dict[int, int]] = {}
        for number, mutant in enumerate(job.mutants):
            self._places.setdefault(mutant.module, {})[mutant.place] = number

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._places:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None:
            return None
        tree = woven(fullname, self._sources[fullname], self._places[fullname])
        spec.loader = _Loader(fullname, spec.origin, compile(tree, spec.origin, "exec"), self)
        return spec

    def give(self, module: types.ModuleType) -> None:
        setattr(module, SWITCHES, self._switches)


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, code: types.CodeType, finder: Finder) -> None:
        super().__init__(name, path)
        self._code = code
        self._finder = finder

    def exec_module(self, module: types.ModuleType) -> None:
        self._finder.give(module)
        exec(self._code, module.__dict__)


@dataclass
class Runner:
    """A pytest plugin that runs the collected tests in its own way."""

    job: Job
    switches: Switches
    tell: Callable[[Baseline | Fate], None]
    failed: str = ""
    ran: bool = False
    _caches: list[Any] = field(default_factory=list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            return False  # a test that cannot be imported: pytest says it
        self.ran = True
        self._caches = [
            each for each in gc.get_objects() if isinstance(each, functools._lru_cache_wrapper)
        ]
        tasks: dict[str, Callable[[], bool]] = {
            item.nodeid: functools.partial(self._passes, item) for item in session.items
        }
        tasks |= {f"simulation[{n}]": _world(n) for n in range(self.job.seeds)}
        at_import = frozenset(self.switches.executed)
        if self.job.alone != OFF:
            of_use = [test for test in tasks if test not in self.job.without]
            self.tell(self._fate(self.job.alone, of_use, tasks, self.job.alone_limit_s))
            return True
        known = self._known(tasks)
        failing = tuple(t.test for t in known if not t.passed)
        self.tell(Baseline(failing, sum(t.took_s for t in known)))
        for number in range(len(self.job.mutants)):
            if number in at_import:
                self.tell(Fate(number, "", at_import=True))
                continue
            reaching = [t for t in known if t.passed and number in t.executed]
            reaching.sort(key=self._turn)
            limit_s = limit_of(self.job, sum(t.took_s for t in reaching))
            self.tell(self._fate(number, [t.test for t in reaching], tasks, limit_s))
        return True

    def _turn(self, tested: Tested) -> tuple[int, float]:
        """Own tests go first, the simulation last, and of each the quick ones."""
        tests = self.job.tests
        folder = next((n for n, t in enumerate(tests) if tested.test.startswith(t)), len(tests))
        return folder, round(tested.took_s, 1)

    def _passes(self, item: pytest.Item) -> bool:
        """One test, from its fixtures to their end."""
        self.failed = ""
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        return not self.failed

    def _attempt(self, task: Callable[[], bool]) -> bool:
        for cache in self._caches:
            cache.cache_clear()
        try:
            return task()
        except Exception:  # noqa: BLE001 - a world that breaks is a world that noticed
            return False

    def _known(self, tasks: dict[str, Callable[[], bool]]) -> list[Tested]:
        def run() -> Iterator[str]:
            for name, task in tasks.items():
                self.switches.executed.clear()
                began_s = time.monotonic()
                passed = self._attempt(task)
                took_s = time.monotonic() - began_s
                yield json.dumps([name, passed, took_s, sorted(self.switches.executed)])

        lines, ended = _forked(run, BASELINE_LIMIT_S)
        if not ended or len(lines) != len(tasks):
            raise RuntimeError(f"tests without a mutant broke off after {lines[-1:]}")
        return [
            Tested(name, passed, took_s, tuple(executed))
            for name, passed, took_s, executed in map(json.loads, lines)
        ]

    def _fate(
        self,
        mutant: int,
        tests: Sequence[str],
        tasks: dict[str, Callable[[], bool]],
        limit_s: float,
    ) -> Fate:
        def run() -> Iterator[str]:
            self.switches.on = mutant
            for test in tests:
                if not self._attempt(tasks[test]):
                    yield json.dumps(test)
                    return
            yield json.dumps("")

        if not tests:
            return Fate(mutant, "")
        lines, ended = _forked(run, limit_s)
        if lines:
            return Fate(mutant, json.loads(lines[0]), len(tests))
        return Fate(mutant, "its process broke" if ended else "time limit", len(tests))


def limit_of(job: Job, took_s: float) -> float:
    """How long tests may take with a mutant that take so long without one."""
    return max(job.least_limit_s, LIMIT_FACTOR * took_s)


def _world(seed: int) -> Callable[[], bool]:
    """One seed of the simulation; it passes if no invariant broke."""

    def passes() -> bool:
        return sys.modules[WORLDS].run(seed).finding is None

    return passes


def _forked(lines: Callable[[], Iterator[str]], limit_s: float) -> tuple[list[str], bool]:
    """What a fork has to tell, line by line, and whether it ended by itself."""
    reads, writes = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # numpy's threads, from Python 3.12 on
        child = os.fork()
    if not child:
        try:
            os.setpgid(0, 0)
            os.close(reads)
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
            cpu_s = math.ceil(limit_s) + 1  # if nobody is left to end it
            resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
            with os.fdopen(writes, "w", buffering=1) as out:
                for line in lines():
                    print(line, file=out)
        finally:
            os._exit(0)
    os.close(writes)
    told = b""
    ended = False
    deadline_s = time.monotonic() + limit_s
    try:
        while (left_s := deadline_s - time.monotonic()) > 0:
            if select.select([reads], [], [], left_s)[0]:
                chunk = os.read(reads, 1 << 16)
                told += chunk
                if not chunk:
                    ended = True
                    break
    finally:
        for kill, whom in ((os.killpg, child), (os.kill, child)):
            with contextlib.suppress(ProcessLookupError):
                kill(whom, signal.SIGKILL)  # and what its tests had started
        os.waitpid(child, 0)
        os.close(reads)
    return told.decode().splitlines(), ended


def work(job: Job, told: Connection) -> None:
    """Do one job, send each answer as it is known, and at the end "" or what went wrong."""
    os.setsid()  # Ctrl-C reaches whoever started this, who then ends it in order:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            failed = _work(job, told)
    except BaseException as error:
        told.send(f"{error!r}\n{output.getvalue()[-2000:]}")
        raise
    told.send(failed and f"{failed}\n{output.getvalue()[-2000:]}")


def _work(job: Job, told: Connection) -> str:
    sys.dont_write_bytecode = True
    # A failing example needs not be the smallest, and no run may remember the last one's.
    settings.register_profile(
        "mutation", database=None, deadline=None, phases=(Phase.explicit, Phase.generate)
    )
    settings.load_profile("mutation")
    switches = Switches(job.alone)
    sys.meta_path.insert(0, Finder(job, switches))
    runner = Runner(job, switches, told.send)
    with tempfile.TemporaryDirectory() as scratch:
        try:
            if job.seeds:
                importlib.import_module(WORLDS)
            code: object = pytest.main(
                [
                    *job.tests,
                    *("-q", "--tb=no", "--assert=plain", "--hypothesis-seed=0"),
                    *("-p", "no:cacheprovider", f"--basetemp={Path(scratch) / 'tmp'}"),
                ],
                plugins=[runner],
            )
        except Exception as error:
            if job.alone == OFF:
                raise
            code, runner.ran = repr(error), False
    if runner.ran:
        return ""
    if job.alone != OFF:
        told.send(Fate(job.alone, "import"))
        return ""
    return f"pytest ended with {code}"
