"""Events on objects, for people who use kubectl: what ``kubectl describe`` shows last.

An event is a courtesy: its caller never waits, and an event that cannot be written is dropped and
counted. The name of an event follows from object, type and reason, so the same reason again
patches the event that is there: it raises the count and gives the newest words. These are events of
the core group, since those of events.k8s.io do not let their words change.
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
MAX_WAITING: Final = 1000  # events that are not written yet
MAX_COUNTED: Final = 4000  # events whose count is remembered
WRITE_GAP_S: Final = 0.05  # between two writes: 20 a second at most
WRITE_TIMEOUT_S: Final = 5.0
FLUSH_S: Final = 2.0  # for what is left when the service stops

EventKind = Literal["Normal", "Warning"]


class Subject(NamedTuple):
    """The object that an event is about."""

    resource: Resource
    metadata: Metadata


class PendingEvent(NamedTuple):
    """One event that is to be written."""

    subject: Subject
    kind: EventKind
    reason: str
    note: str
    times: int  # how often since the event was last written
    at_s: float  # seconds since 1970

    @property
    def namespace(self) -> str:
        """Events about objects without a namespace stand in "default", where kubectl looks."""
        return self.subject.metadata.namespace or "default"


class Recorder:
    """Writes events of one reporter to one API server. ``run`` must run for anything to happen."""

    def __init__(
        self,
        client: Client,
        *,
        controller: str,  # such as berthmaster/multikueue
        instance: str,
        log: LogLike,
        now: Callable[[], float],
    ) -> None:
        """``now``: seconds since 1970."""
        self._client = client
        self._controller = controller
        self._instance = instance
        self._log = log
        self._now = now
        self._waiting: dict[
            str, PendingEvent
        ] = {}  # by the event's name, in the order of their last word
        self._counts: dict[str, int] = {}  # of events that were written, the latest last
        self._some = asyncio.Event()
        self._complained: set[str] = set()
        self.written = 0
        self.dropped = 0

    def tell(self, subject: Subject, kind: EventKind, reason: str, note: str) -> None:
        """Have an event written soon; returns at once. ``reason`` is one word in CamelCase."""
        name = _name(subject, kind, reason)
        before = self._waiting.pop(name, None)
        if before is None and len(self._waiting) >= MAX_WAITING:
            self.dropped += 1
            return
        count = 1 if before is None else before.times + 1
        self._waiting[name] = PendingEvent(subject, kind, reason, cut(note), count, self._now())
        self._some.set()

    async def run(self, stopping: asyncio.Event) -> None:
        """Write what is told until told to stop, and then what is left, for a moment."""
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
            if kind not in self._complained:  # once for each kind of failure, until one is written
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
        """Write an event, new or not; its count. Raises KubernetesError."""
        if (known := self._counts.get(name)) is not None:
            try:
                return await self._patch(name, event, known + event.times)
            except NotFound:
                pass  # the API server forgets events after an hour
        try:
            path = EVENTS.path(namespace=event.namespace)
            body = self._body(name, event)
            await self._client.create(path, body, Object, timeout_s=WRITE_TIMEOUT_S)
        except AlreadyExists:  # a replica or a process before this one has written it
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
    """At most 1 KiB of UTF-8, cut between characters."""
    data = note.encode(errors="replace")
    if len(data) <= MAX_NOTE_BYTES:
        return data.decode()
    return data[: MAX_NOTE_BYTES - 3].decode(errors="ignore") + "…"
