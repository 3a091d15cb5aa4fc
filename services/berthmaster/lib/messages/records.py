"""What is kept for the record: dead letters, archived stories, leases, how far logs were."""

import msgspec

from berthmaster.lib.messages.api import RecordedEvent


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="dead.v1"):
    """A message that a service could not decode or handle.

    Subject: ``berth.dead.<service>``
    """

    service: str
    subject: str
    reason: str
    at_s: float
    stream: str = ""
    sequence: int = 0
    workload: str = ""  # "<tenant>/<id>" if it belonged to one: frozen for that service
    body: bytes = b""  # shortened, and without what looks like a key or a token


class ArchivedStory(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="archive.story.v1"
):
    """All events of an ended workload, before its aggregate is purged down to the ending. A long
    story is several messages. After a crash one may be there twice, and its copy may call other
    events void: of events with one sequence and one time of storing the first counts.

    Subject: ``berth.archive.workload.<tenant>.<bucket>``, the bucket being CRC-32 of the id modulo
    16384
    """

    tenant: str
    id: str
    events: tuple[RecordedEvent, ...]


class Lease(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="lease.v1"):
    """Who does a job that one does at a time. It keeps the peace; guards keep it safe.

    Subject: ``berth.lease.<name>``
    """

    name: str
    holder: str
    ttl_s: float
    renewals: int = 0
    released: bool = False  # True: given up on purpose, take it at once


class StreamMark(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far one stream was, and its last message then."""

    stream: str
    incarnation: str  # the stream's, as its metadata has it
    sequence: int  # of the last message; 0 = the stream was empty
    digest: str = ""  # of that message; "" = not known
    subject: str = ""  # of that message


class LogMark(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="log.mark.v2"):
    """How far the logs were when a service checked them last. It is kept beside them, so that a log
    that has lost its end, or is another one, is noticed.

    Subject: ``berth.lease.log.<service>``
    """

    service: str
    at_s: float  # the server's clock
    streams: tuple[StreamMark, ...] = ()


class LogEnd(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="log.end.v1"):
    """The end of the log of one pod, as its cluster read it before the pod was removed.

    Subject: ``berth.log_end.<tenant>.<id>.<attempt>.<cluster>.<pod>``
    """

    tenant: str
    id: str
    attempt: int
    cluster: str
    pod: int = 0
    pods: int = 1
    data: bytes = b""  # whole lines: time, a blank, text
    cut: bool = False  # there was more before
