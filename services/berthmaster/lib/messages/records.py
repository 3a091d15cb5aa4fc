"""Records: dead letters, archived event histories, leases and high-water marks of logs."""

import msgspec

from berthmaster.lib.messages.api import RecordedEvent


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="dead.v1"):
    """A message that a service could not decode or handle.

    Subject: ``berth.dead.<service>``
    """

    service: str  # service that failed
    subject: str  # subject of the message
    reason: str  # error
    at_s: float  # time of the failure, in seconds since 1970
    stream: str = ""  # stream of the message; "" = unset
    sequence: int = 0  # stream sequence of the message; 0 = unset
    workload: str = ""  # "<tenant>/<id>" of the workload, frozen for the service; "" = unset
    body: bytes = b""  # message, shortened, with keys and tokens removed


class ArchivedStory(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="archive.story.v1"
):
    """Events of an ended workload, written before the log keeps only the ending. A long history
    takes several messages. After a crash a message may repeat, and copies may mark other events as
    void: for one sequence and storing time, the first copy is valid.

    Subject: ``berth.archive.workload.<tenant>.<bucket>``, the bucket being CRC-32 of the id modulo
    16384
    """

    tenant: str
    id: str
    events: tuple[RecordedEvent, ...]  # events in the log's order


class Lease(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="lease.v1"):
    """A lease for work that one process does at a time. Expected-last-sequence checks give the
    safety.

    Subject: ``berth.lease.<name>``
    """

    name: str  # name of the work
    holder: str  # service and instance that hold the lease
    ttl_s: float  # seconds after the last renewal until another may take the lease
    renewals: int = 0  # number of renewals
    released: bool = False  # True: given up on purpose, free at once


class StreamMark(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """High-water mark of one stream, with its last message."""

    stream: str  # name of the stream
    incarnation: str  # id of the stream's incarnation, from its metadata
    sequence: int  # sequence of the last message; 0 = the stream was empty
    digest: str = ""  # hash of the last message; "" = unknown
    subject: str = ""  # subject of the last message


class LogMark(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="log.mark.v2"):
    """High-water marks of the logs at a service's last check, stored beside the logs. A log that
    lost its end, or was replaced, is behind its mark.

    Subject: ``berth.lease.log.<service>``
    """

    service: str  # service that checked
    at_s: float  # server's clock
    streams: tuple[StreamMark, ...] = ()  # marks by stream


class LogEnd(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="log.end.v1"):
    """The end of the log of one pod, as its cluster read it before the pod was removed.

    Subject: ``berth.log_end.<tenant>.<id>.<attempt>.<cluster>.<pod>``
    """

    tenant: str
    id: str
    attempt: int
    cluster: str
    pod: int = 0  # index of the pod
    pods: int = 1  # number of pods of the attempt
    data: bytes = b""  # whole lines: time, a blank, text
    cut: bool = False  # True: earlier lines are missing
