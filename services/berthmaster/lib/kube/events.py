"""Kubernetes Events on objects, which ``kubectl describe`` shows last.

Events are best effort: the caller never waits, and an Event that cannot be written is dropped and
counted. The name of an Event follows from object, type and reason. A repeated reason therefore
patches the existing Event: the count rises, and the note is replaced. The Events belong to the core
group, because an Event of events.k8s.io cannot change its note.
"""

import asyncio
import hashlib
from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple

from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.errors import AlreadyExists, KubernetesError, NotFound
from berthmaster.lib.kube.objects import Metadata, Object, timestamp
from berthmaster.lib.kube.resources import EVENTS, Resource
from berthmaster.lib.runtime.log import LogLike

MAX_NOTE_BYTES: Final = 1024
MAX_WAITING: Final = 1000  # queued events
MAX_COUNTED: Final = 4000  # events with a known count
WRITE_GAP_S: Final = 0.05  # between two writes: at most 20 a second
WRITE_TIMEOUT_S: Final = 5.0
FLUSH_S: Final = 2.0  # time for queued events when the service stops

EventKind = Literal["Normal", "Warning"]


class Subject(NamedTuple):
    """The object of an event."""

    resource: Resource
    metadata: Metadata


class PendingEvent(NamedTuple):
    """An event in the queue."""

    subject: Subject
    kind: EventKind
    reason: str
    note: str
    times: int  # repetitions since the event was last written
    at_s: float  # seconds since 1970

    @property
    def namespace(self) -> str:
        """Return "default" for an object without a namespace, as kubectl expects."""
        return self.subject.metadata.namespace or "default"


class Recorder:
    """Writes the events of one reporter to one API server, while ``run`` runs."""

    def __init__(
        self,
        client: Client,
        *,
        controller: str,  # such as berthmaster/multikueue
        instance: str,
        log: LogLike,
        now: Callable[[], float],
    ) -> None:
        """``now`` returns seconds since 1970."""
        self._client = client
        self._controller = controller
        self._instance = instance
        self._log = log
        self._now = now
        self._waiting: dict[str, PendingEvent] = {}  # by event name, the last repeated event last
        self._counts: dict[str, int] = {}  # of written events, the last written last
        self._some = asyncio.Event()
        self._complained: set[str] = set()
        self.written = 0
        self.dropped = 0

    def tell(self, subject: Subject, kind: EventKind, reason: str, note: str) -> None:
        """Queue an event and return at once. ``reason`` is one word in CamelCase."""
        name = _name(subject, kind, reason)
        before = self._waiting.pop(name, None)
        if before is None and len(self._waiting) >= MAX_WAITING:
            self.dropped += 1
            return
        count = 1 if before is None else before.times + 1
        self._waiting[name] = PendingEvent(subject, kind, reason, cut(note), count, self._now())
        self._some.set()

    async def run(self, stopping: asyncio.Event) -> None:
        """Write queued events until the service stops, then the rest for at most ``FLUSH_S``."""
        writing = asyncio.create_task(self._write_all(stopping), name="events on objects")
        stop = asyncio.create_task(stopping.wait())
        try:
            await asyncio.wait({writing, stop}, return_when=asyncio.FIRST_COMPLETED)
            self._some.set()
            await asyncio.wait({writing}, timeout=FLUSH_S)
        finally:
            stop.cancel()
            writing.cancel()
            await asyncio.wait({writing, stop})
        if not writing.cancelled() and (error := writing.exception()) is not None:
            raise error
        if left := len(self._waiting):
            self.dropped += left
            self._log.info("kubernetes events dropped at stop", events=left)

    async def _write_all(self, stopping: asyncio.Event) -> None:
        while True:
            while self._waiting:
                name = next(iter(self._waiting))
                await self._write(name, self._waiting.pop(name))
                await asyncio.sleep(0 if stopping.is_set() else WRITE_GAP_S)
            if stopping.is_set():
                return
            self._some.clear()
            await self._some.wait()

    async def _write(self, name: str, event: PendingEvent) -> None:
        try:
            count = await self._put(name, event)
        except asyncio.CancelledError:
            self.dropped += 1
            raise
        except KubernetesError as error:
            self.dropped += 1
            kind = type(error).__name__
            if kind not in self._complained:  # log each kind once, until a write succeeds
                self._complained.add(kind)
                self._log.warning(
                    "kubernetes events not written", why=str(error), dropped=self.dropped
                )
            return
        self._counts.pop(name, None)
        self._counts[name] = count
        if len(self._counts) > MAX_COUNTED:
            del self._counts[next(iter(self._counts))]
        self.written += 1
        self._complained.clear()

    async def _put(self, name: str, event: PendingEvent) -> int:
        """Create or patch an event and return its count. Raise KubernetesError."""
        if (known := self._counts.get(name)) is not None:
            try:
                return await self._patch(name, event, known + event.times)
            except NotFound:
                pass  # the API server deletes events after an hour
        try:
            path = EVENTS.path(namespace=event.namespace)
            body = self._body(name, event)
            await self._client.create(path, body, Object, timeout_s=WRITE_TIMEOUT_S)
        except AlreadyExists:  # written by another replica or an earlier process
            return await self._patch(name, event, event.times + 1)
        return event.times

    async def _patch(self, name: str, event: PendingEvent, count: int) -> int:
        path = EVENTS.path(namespace=event.namespace, name=name)
        body = {"count": count, "message": event.note, "lastTimestamp": timestamp(event.at_s)}
        await self._client.merge_patch(path, body, Object, timeout_s=WRITE_TIMEOUT_S)
        return count

    def _body(self, name: str, event: PendingEvent) -> dict[str, Any]:
        subject = event.subject
        meta = subject.metadata
        return {
            "apiVersion": EVENTS.group_version,
            "kind": EVENTS.kind,
            "metadata": {"name": name, "namespace": event.namespace},
            "involvedObject": {
                "apiVersion": subject.resource.group_version,
                "kind": subject.resource.kind,
                "name": meta.name,
                "namespace": meta.namespace,
                "uid": meta.uid,
                "resourceVersion": meta.resource_version,
            },
            "type": event.kind,
            "reason": event.reason,
            "message": event.note,
            "count": event.times,
            "firstTimestamp": timestamp(event.at_s),
            "lastTimestamp": timestamp(event.at_s),
            "source": {"component": self._controller},
            "reportingComponent": self._controller,
            "reportingInstance": self._instance[:128],
        }


def _name(subject: Subject, kind: EventKind, reason: str) -> str:
    """Return the name of the event of this object, type and reason."""
    meta = subject.metadata
    parts = (meta.uid, meta.namespace, meta.name, subject.resource.plural, kind, reason)
    digest = hashlib.sha256("/".join(parts).encode()).hexdigest()[:16]
    return f"{meta.name[:200].rstrip('.-') or 'event'}.{digest}"


def cut(note: str) -> str:
    """Return at most 1 KiB of UTF-8, cut between characters."""
    data = note.encode(errors="replace")
    if len(data) <= MAX_NOTE_BYTES:
        return data.decode()
    return data[: MAX_NOTE_BYTES - 3].decode(errors="ignore") + "…"
