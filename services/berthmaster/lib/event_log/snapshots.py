"""Snapshots in the object store, so that a service starts from a snapshot, not from the first
event.

A snapshot is an ordinary object of the NATS object store: chunks under a subject, then a message
with name, size and digest. So a half-written object is invisible. The last few snapshots of a name
rotate through a fixed number of slots.

Example: ``keep=2`` uses the slots ``resolver.0`` and ``resolver.1``. The third save overwrites
``resolver.0``. If ``resolver.0`` is then damaged, ``load`` returns ``resolver.1``.

``load`` verifies the digest. A snapshot only saves time, so a missing snapshot is better than a
wrong snapshot.
"""

import asyncio
import base64
import hashlib
import re
import secrets
from typing import Final, NamedTuple

import msgspec

from berthmaster.lib.messages.families import UNREADABLE
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import BusError, TooLarge
from berthmaster.lib.nats.stream_reads import last_message, next_message
from berthmaster.lib.nats.streams import SNAPSHOTS
from berthmaster.lib.nats.subjects import token

MAX_BYTES: Final = 1024**3
MAX_CHUNK_BYTES: Final = 256 * 1024
MOST_KEPT: Final = 8
IN_FLIGHT: Final = 16  # chunks that are sent before the first acknowledgement is awaited
PUT_TIMEOUT_S: Final = 10.0
ORPHANED_AFTER_S: Final = 600.0  # age of unnamed chunks: their writer crashed, or is still writing
_BUCKET: Final = "SNAPSHOTS"
_DIGEST: Final = "SHA-256="


class _Options(msgspec.Struct, omit_defaults=True):
    max_chunk_size: int = 0


class _Object(msgspec.Struct, omit_defaults=True):
    """The message that names an object, with the object store's fields."""

    name: str
    bucket: str
    nuid: str
    size: int = 0
    chunks: int = 0
    digest: str = ""
    deleted: bool = False
    options: _Options | None = None


class _Slot(NamedTuple):
    number: int
    sequence: int  # 0 = never used
    found: _Object | None


class _Subjects(msgspec.Struct):
    subjects: dict[str, int] | None = None


class _Info(msgspec.Struct):
    state: _Subjects


_OBJECT: Final = msgspec.json.Decoder(_Object)
_INFO: Final = msgspec.json.Decoder(_Info)


def _object_name(name: str, slot: int) -> str:
    return f"{name}.{slot}"


def _meta_subject(object_name: str) -> str:
    return f"$O.{_BUCKET}.M.{base64.urlsafe_b64encode(object_name.encode()).decode()}"


def _chunk_subject(nuid: str) -> str:
    return f"$O.{_BUCKET}.C.{nuid}"


async def save(conn: Connection, name: str, data: bytes, keep: int = 2) -> None:
    """Store a snapshot and keep the ``keep - 1`` before. Raises TooLarge, and BusError: the earlier
    snapshots still exist then.
    """
    if not 1 <= keep <= MOST_KEPT:
        raise ValueError(f"keep: 1 to {MOST_KEPT}, not {keep}")
    if len(data) > MAX_BYTES:
        raise TooLarge(f"a snapshot of {len(data)} bytes; at most {MAX_BYTES}")
    slots = await _slots(conn, name)
    oldest = min(slots[:keep], key=lambda slot: slot.sequence)
    chunk_bytes = min(MAX_CHUNK_BYTES, conn.nc.max_payload // 2)
    nuid = f"{token(name)}-{secrets.token_hex(8)}"
    chunks, digest = await _put_chunks(conn, nuid, data, chunk_bytes)
    object_name = _object_name(name, oldest.number)
    await _put(
        conn,
        _meta_subject(object_name),
        msgspec.json.encode(
            _Object(
                name=object_name,
                bucket=_BUCKET,
                nuid=nuid,
                size=len(data),
                chunks=chunks,
                digest=digest,
                options=_Options(max_chunk_size=chunk_bytes),
            )
        ),
        {"Nats-Rollup": "sub"},
    )
    used = {slot.found.nuid for slot in slots if slot.found is not None and slot != oldest}
    await _clear_away(conn, name, used | {nuid}, oldest.found)


async def load(conn: Connection, name: str) -> bytes | None:
    """Return the newest undamaged snapshot, or None. Raises BusError."""
    for slot in sorted(await _slots(conn, name), key=lambda slot: -slot.sequence):
        if slot.found is None:
            continue
        data = await _read(conn, slot.found)
        if data is not None:
            return data
        conn.log.error("snapshot damaged", name=slot.found.name, size=slot.found.size)
    return None


async def _slots(conn: Connection, name: str) -> list[_Slot]:
    slots = []
    for number in range(MOST_KEPT):
        message = await last_message(conn, SNAPSHOTS, _meta_subject(_object_name(name, number)))
        found = None
        if message is not None:
            try:
                found = _OBJECT.decode(message.data)
            except UNREADABLE as error:
                conn.log.error("snapshot name unreadable", name=name, why=str(error))
            if found is not None and found.deleted:
                found = None
        slots.append(_Slot(number, message.sequence if message is not None else 0, found))
    return slots


async def _put_chunks(
    conn: Connection, nuid: str, data: bytes, chunk_bytes: int
) -> tuple[int, str]:
    """Store the chunks in order. Return their number, and the digest of all."""
    digest = hashlib.sha256()
    view = memoryview(data)
    chunks = 0
    for start in range(0, len(data), chunk_bytes * IN_FLIGHT):
        window = [
            bytes(view[at : at + chunk_bytes])
            for at in range(start, min(start + chunk_bytes * IN_FLIGHT, len(data)), chunk_bytes)
        ]
        await asyncio.gather(*(_put(conn, _chunk_subject(nuid), chunk) for chunk in window))
        for chunk in window:
            digest.update(chunk)
        chunks += len(window)
    return chunks, _DIGEST + base64.urlsafe_b64encode(digest.digest()).decode()


async def _put(
    conn: Connection, subject: str, data: bytes, headers: dict[str, str] | None = None
) -> None:
    await conn.store(subject, data, timeout_s=PUT_TIMEOUT_S, headers=headers)


async def _read(conn: Connection, found: _Object) -> bytes | None:
    """Return the object's bytes, or None if the digest or size differs."""
    if not 0 <= found.size <= MAX_BYTES:
        return None
    parts: list[bytes] = []
    digest = hashlib.sha256()
    start = 1
    for _ in range(found.chunks):
        chunk = await next_message(conn, SNAPSHOTS, _chunk_subject(found.nuid), start)
        if chunk is None:
            return None
        parts.append(chunk.data)
        digest.update(chunk.data)
        start = chunk.sequence + 1
    data = b"".join(parts)
    expected = found.digest.removeprefix(_DIGEST)
    right = base64.urlsafe_b64encode(digest.digest()).decode() == expected
    return data if right and len(data) == found.size else None


async def _clear_away(
    conn: Connection, name: str, used: set[str], replaced: _Object | None
) -> None:
    """Delete the chunks of the replaced snapshot and of crashed writers of the same name."""
    stale = [replaced.nuid] if replaced is not None and replaced.nuid not in used else []
    try:
        raw = await conn.api(f"STREAM.INFO.{SNAPSHOTS}", {"subjects_filter": _chunk_subject(">")})
        ours = re.compile(re.escape(_chunk_subject(f"{token(name)}-")) + r"([0-9a-f]{16})\Z")
        for subject in _INFO.decode(raw).state.subjects or {}:
            nuid = subject.rpartition(".")[2]
            if ours.match(subject) and nuid not in used and nuid not in stale:
                last = await last_message(conn, SNAPSHOTS, subject)
                if last is not None and conn.now() - last.stored_at_s > ORPHANED_AFTER_S:
                    stale.append(nuid)
        for nuid in stale:
            await conn.api(f"STREAM.PURGE.{SNAPSHOTS}", {"filter": _chunk_subject(nuid)})
    except BusError as error:  # old chunks only occupy space, until the next save
        conn.log.warning("old snapshots not deleted", name=name, why=str(error))
