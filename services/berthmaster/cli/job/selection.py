"""Workloads selected by name, set or labels, for commands about several workloads."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from berthmaster.cli.session import usage

if TYPE_CHECKING:
    from berthmaster.client import Client
    from berthmaster.lib.messages.api import WorkloadStateName, WorkloadView
    from berthmaster.lib.messages.workload import WorkloadEvent

OPEN_STATES: "tuple[WorkloadStateName, ...]" = (
    "queued",
    "placed",
    "claimed",
    "admitted",
    "running",
)


@dataclass(frozen=True)
class Selection:
    """A selection. All criteria must match, and an empty selection matches nothing."""

    set_name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.set_name or self.labels)

    def __str__(self) -> str:
        parts = [f"set {self.set_name}"] if self.set_name else []
        return ", ".join([*parts, *(f"{key}={value}" for key, value in self.labels.items())])

    def takes(self, set_name: str, labels: Mapping[str, str]) -> bool:
        """Return whether a workload with this set and these labels is selected."""
        same = not self.set_name or self.set_name == set_name
        return same and self.labels.items() <= labels.items()

    async def views(
        self,
        berth: "Client",
        states: "Sequence[WorkloadStateName]" = (),
        *,
        parts: bool = False,
    ) -> "AsyncIterator[WorkloadView]":
        """Yield the selected workloads, newest first.

        ``states`` limits their states. ``parts`` includes the parts of divided jobs.
        """
        before = 0
        while True:
            page = await berth.list(
                states=states,
                set_name=self.set_name,
                labels=self.labels,
                limit=1000,
                before=before,
                parts=parts,
            )
            for view in page.workloads:
                yield view
            if not (before := page.next_before):
                return


class Followed:
    """Selects events of the selected workloads, including newly submitted ones."""

    def __init__(self, selection: Selection, ids: set[str]) -> None:
        self._selection = selection
        self._ids = ids

    def takes(self, event: "WorkloadEvent") -> bool:
        from berthmaster.lib.messages.workload import Submitted

        if isinstance(event, Submitted) and self._selection.takes(
            event.request.set, event.request.labels
        ):
            self._ids.add(event.id)
        return event.id in self._ids


def selection_options(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the flags --set and --label, as ``set_name`` and ``label``."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        label = click.option("--label", multiple=True, metavar="K=V", help=f"{what} this label.")
        named = click.option(
            "--set", "set_name", default="", metavar="NAME", help=f"{what} this set."
        )
        return named(label(function))

    return decorate


def selection_of(set_name: str, label: Sequence[str]) -> Selection:
    from berthmaster.cli.values import WrongInput, parse_pairs

    try:
        return Selection(set_name, parse_pairs(label, "label"))
    except WrongInput as error:
        usage(str(error))
