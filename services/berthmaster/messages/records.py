"""What is kept for the record: dead letters, archived stories, leases."""

import msgspec

from berthmaster.messages.api import RecordedEvent


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
    """All events of an ended workload, before its aggregate is purged down to the ending.

    Subject: ``berth.archive.workload.<tenant>.<id>``
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
