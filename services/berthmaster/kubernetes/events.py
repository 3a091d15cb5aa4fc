"""Events on objects, for people who use kubectl: what ``kubectl describe`` shows last.

An event is a courtesy: it is never waited for, never retried for long, and dropped (and counted)
rather than allowed to slow or crowd anything. The same reason again within minutes raises the count
of the event that is there.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from berthmaster.kubernetes.client import Client
from berthmaster.kubernetes.objects import Metadata
from berthmaster.kubernetes.resources import Resource
from berthmaster.kubernetes.transport import LogLike

MAX_NOTE_BYTES: Final = 1024  # the API server's own limit
EventKind = Literal["Normal", "Warning"]


class Subject(NamedTuple):
    """The object that an event is about."""

    resource: Resource
    metadata: Metadata


class Recorder:
    """Writes events of one reporter to one API server."""

    def __init__(
        self,
        client: Client,
        *,
        controller: str,  # such as berthmaster.example/multikueue
        instance: str,
        log: LogLike,
        now: Callable[[], float],
    ) -> None:
        self.dropped = 0

    def tell(
        self, subject: Subject, kind: EventKind, reason: str, note: str, *, action: str = ""
    ) -> None:
        """Have an event written soon; returns at once. ``reason`` is one word in CamelCase."""
        raise NotImplementedError

    async def run(self, stopping: asyncio.Event) -> None:
        """Write what is told until told to stop."""
        raise NotImplementedError
