"""Progress of `berth lab`: bars on a terminal, lines elsewhere, both on standard error."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from berthmaster.lab.controlplane.compiling import Compiling, say_programs


class Progress:
    """A bar per compiled program, and one for the start's steps."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TimeElapsedColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._programs: dict[str, TaskID] = {}
        self._start: TaskID | None = None

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bars.stop()

    def compiling(self, step: Compiling) -> None:
        """Show the number of compiled packages of a program."""
        if not self._console.is_terminal:
            say_programs(step)
            return
        title = f"compiling {step.program} ({step.number} of {step.programs})"
        total = max(step.packages, 1)  # packages in Go's cache are not counted
        if step.program not in self._programs:
            self._programs[step.program] = self._bars.add_task(title, total=total)
        done = total if step.took_s is not None else step.done
        self._bars.update(self._programs[step.program], total=total, completed=done)

    def step(self, name: str, done: int, of: int) -> None:
        """Show the running step of the start."""
        if not self._console.is_terminal:
            self._console.print(f"lab: {name} ({done + 1} of {of})")
            return
        if self._start is None:
            self._start = self._bars.add_task(name, total=of)
        self._bars.update(self._start, description=f"starting {name}", completed=done)
