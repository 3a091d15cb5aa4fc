"""Every stream of the system, with limits. The user "setup" creates and updates streams at each
start.

    WORKLOADS   the source of truth: on disk, atomic batches, no age limit, refuses when full
    FLEET       last values
    FLEET_LOG   a mirror of FLEET with the same sequences, for some days, so that a decision can
                be repeated on the facts that its decider had

A change not permitted on a live stream (the storage, say) is an error, never a silent difference.

A stream incarnation has an id in the stream's metadata, drawn by its creator. The creation time
would not do: each server reports another one for a restored stream. A stream without an id, created
by another program, gets as id the creation time reported by the leader. So the id stays the same
for all readers that remember the stream.

Each stream has a limit. Where the newest message matters, the oldest is dropped. In FLEET that is
history first, since all facts are reported again every hour. Where messages must stay, new messages
are refused, and the writer gets an error.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, Literal

import msgspec

from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.durables import DURABLES, Durable
from berthmaster.lib.nats.errors import ApiError, NoAnswer, NotConnected
from berthmaster.lib.nats.stream_names import (
    ARCHIVE,
    CONTROL,
    DEAD,
    FLEET,
    FLEET_LOG,
    LEASES,
    LOG_ENDS,
    SNAPSHOTS,
    WORKLOADS,
)

__all__ = [
    "ARCHIVE",
    "BUILDING",
    "CONTROL",
    "CONTROL_A_SUBJECT",
    "DEAD",
    "ENSURE_TIMEOUT_S",
    "FLEET",
    "FLEET_LOG",
    "FOLLOWED",
    "GIB",
    "LEASES",
    "LOG_ENDS",
    "MAKING",
    "NO_STREAM",
    "REPUBLISH",
    "SNAPSHOTS",
    "WORKLOADS",
    "Storage",
    "StreamInfo",
    "StreamState",
    "ensure_durable",
    "ensure_streams",
    "find_stream",
    "making_of",
    "new_making",
    "stream_configs",
    "stream_info",
]

GIB: Final = 1024**3
MAKING: Final = "berth.making"  # metadata key of the stream incarnation's id
# metadata key: ids of incarnations that `berth recover` replaced
REPLACES: Final = "berth.replaces"
# metadata key, set while `berth recover` works on the stream
RECOVERING: Final = "berth.recovering"
BUILDING: Final = "berth.building"  # metadata key, set until the new stream is complete
FIRST: Final = "berth.first"  # metadata key of a stream that does not begin with sequence 1
_KIB: Final = 1024
_DAY_NS: Final = 86_400 * 10**9
NO_STREAM: Final = 10059
_NAME_IN_USE: Final = 10058
_NO_CONSUMER: Final = 10014
# The NATS cluster is still forming, or is creating a stream that another process requested.
_NOT_YET: Final = frozenset({10004, 10008, 10009, NO_STREAM, 10118})
ENSURE_TIMEOUT_S: Final = 30.0
CONTROL_A_SUBJECT: Final = 4096  # newest settings of one object
# two processes request one change: the agreeing servers answer only one of them
_CHANGE_TRY_S: Final = 2.0

# Followers receive stored messages with their sequences. A subscription to the subjects themselves
# would also receive messages that the stream refused.
REPUBLISH: Final = {"src": "berth.>", "dest": subjects.ALL_STORED}

# Streams with followers, and all of their subjects.
FOLLOWED: Final[Mapping[str, tuple[str, ...]]] = {
    WORKLOADS: (subjects.ALL_WORKLOADS, subjects.ALL_DECISIONS),
    FLEET: (subjects.ALL_FLEET,),
    CONTROL: (subjects.ALL_CONTROL,),
    ARCHIVE: (subjects.ALL_ARCHIVE,),
    DEAD: (subjects.ALL_DEAD,),
    LEASES: (subjects.ALL_LEASES,),
}

Storage = Literal["file", "memory"]


def stream_configs(
    *, replicas: int = 1, storage: Storage = "file", workloads_max_bytes: int = 16 * GIB
) -> list[dict[str, Any]]:
    """Return the configuration of every stream, in the order of creation."""
    common: dict[str, Any] = {
        "retention": "limits",
        "storage": storage,
        "num_replicas": replicas,
        "allow_direct": True,
        "max_msgs": -1,
        "duplicate_window": 10**9,  # guards make writes safe; a long window only costs memory
    }
    # A purge is one message without a body, as are some answers of JetStream. No service purges
    # these streams. Only the archivist deletes messages, and only of WORKLOADS.
    unpurged: dict[str, Any] = {"deny_purge": True}
    undeleted = unpurged | {"deny_delete": True}
    configs = [
        common
        | unpurged
        | {
            "name": WORKLOADS,
            "discard": "new",
            "max_bytes": workloads_max_bytes,
            "allow_atomic": True,
        },
        common
        | {
            "name": FLEET,
            "discard": "old",
            # Readers use the last message, but FLEET_LOG must get every one, also late. After a
            # server was lost, FLEET_LOG may be 13 s behind, and a busy cluster's score changes ten
            # times a second.
            "max_msgs_per_subject": 256,
            "max_bytes": 8 * GIB,
            "max_msg_size": 1024 * _KIB,
            "allow_msg_ttl": True,  # facts of objects that come and go, see FactWriter.put
        },
        common
        | {
            "name": FLEET_LOG,
            "mirror": {"name": FLEET},
            # A copy: data lost in a crash is fetched again, so no write waits for the disk.
            **({"persist_mode": "async"} if replicas == 1 and storage == "file" else {}),
            "discard": "old",
            "max_age": 3 * _DAY_NS,
            "max_bytes": 4 * GIB,  # the messages are FLEET's, and have FLEET's maximum size
        },
        common
        | undeleted
        | {
            "name": CONTROL,
            "discard": "new",
            # Decisions depend on settings, so settings stay. A program that changes a setting for
            # ever loses only the oldest changes, and can continue.
            "max_msgs_per_subject": CONTROL_A_SUBJECT,
            "max_bytes": GIB,
            "max_msg_size": 256 * _KIB,
        },
        common
        | undeleted
        | {
            "name": ARCHIVE,
            "discard": "old",
            "max_bytes": 16 * GIB,
            "max_age": 365 * _DAY_NS,
            "compression": "s2",
            "allow_atomic": True,
        },
        common
        | undeleted
        | {
            "name": DEAD,
            "discard": "old",
            "max_age": 30 * _DAY_NS,
            # per service: many letters of a service leave space for the others
            "max_msgs_per_subject": 1000,
            "max_bytes": GIB,
            "max_msg_size": 128 * _KIB,  # a letter has 64 KiB of its message; encoding adds a third
        },
        common
        | {
            "name": LOG_ENDS,
            "subjects": [subjects.ALL_LOG_ENDS],
            "discard": "old",
            "max_age": _DAY_NS,
            # The last lines of deleted pods: no write waits for the disk.
            **({"persist_mode": "async"} if replicas == 1 and storage == "file" else {}),
            "max_msgs_per_subject": 1,
            "max_bytes": GIB,
            "max_msg_size": 256 * _KIB,
            "compression": "s2",
        },
        common
        | {
            "name": LEASES,
            "discard": "old",
            "max_msgs_per_subject": 1,
            # some hundred bytes per lease, some kilobytes per high-water mark
            "max_bytes": 256 * 1024 * _KIB,
            "max_msg_size": 256 * _KIB,
        },
        common
        | {
            "name": SNAPSHOTS,
            "subjects": list(subjects.SNAPSHOT_PARTS),
            "discard": "new",
            "allow_rollup_hdrs": True,
            "max_bytes": 8 * GIB,
        },
    ]
    return [_followed(config) for config in configs]


def _followed(config: dict[str, Any]) -> dict[str, Any]:
    if (followed := FOLLOWED.get(config["name"])) is None:
        return config
    return config | {"subjects": list(followed), "republish": REPUBLISH}


class LostData(msgspec.Struct):
    """Data that a server could not read from disk at the start."""

    bytes: int = 0


class StreamState(msgspec.Struct):
    """The used fields of a stream's state."""

    messages: int = 0
    bytes: int = 0
    first_seq: int = 0
    last_seq: int = 0
    num_subjects: int = 0
    lost: LostData | None = None


def new_making() -> str:
    return secrets.token_hex(12)


def making_of(created: str, metadata: Mapping[str, str] | None) -> str:
    """Return the id of a stream incarnation. Without an id, return the creation time.
    ``ensure_streams`` then stores the same time as the id. So readers need not learn another one.
    """
    return (metadata or {}).get(MAKING, created)


class StreamInfo(msgspec.Struct):
    """The used fields of STREAM.INFO."""

    created: str
    state: StreamState
    config: dict[str, Any]  # complete, so that the stream can be created again unchanged

    @property
    def metadata(self) -> dict[str, str]:
        return self.config.get("metadata") or {}

    @property
    def making(self) -> str:
        return making_of(self.created, self.metadata)

    @property
    def unfinished(self) -> bool:
        """Return whether the `berth recover` that built this stream was interrupted."""
        return BUILDING in self.metadata


_INFO: Final = msgspec.json.Decoder(StreamInfo)


async def stream_info(conn: Connection, stream: str, *, timeout_s: float = 5.0) -> StreamInfo:
    """Return a stream's information. Raises ApiError (NO_STREAM if missing), NoAnswer,
    NotConnected.
    """
    return _INFO.decode(await conn.api(f"STREAM.INFO.{stream}", timeout_s=timeout_s))


async def find_stream(conn: Connection, stream: str) -> StreamInfo | None:
    """Return a stream's information; None = not found. Raises as ``stream_info`` does."""
    try:
        return await stream_info(conn, stream)
    except ApiError as error:
        if error.code == NO_STREAM:
            return None
        raise


async def ensure_streams(
    conn: Connection,
    *,
    replicas: int = 1,
    storage: Storage = "file",
    workloads_max_bytes: int = 16 * GIB,
    timeout_s: float = ENSURE_TIMEOUT_S,
) -> None:
    """Create missing streams and consumers, and update differing ones. Safe to call concurrently.

    Waits for a JetStream that is still starting. Raises ApiError, naming the stream, for a change
    that the server refuses, and NoAnswer at the time limit.
    """
    deadline = asyncio.get_running_loop().time() + timeout_s
    for config in stream_configs(
        replicas=replicas, storage=storage, workloads_max_bytes=workloads_max_bytes
    ):
        await _patiently(partial(_ensure, conn, config), f"stream {config['name']}", deadline)
    for durable in DURABLES:
        make = partial(ensure_durable, conn, durable)
        await _patiently(make, f"consumer {durable.name}", deadline)


async def ensure_durable(conn: Connection, durable: Durable) -> None:
    """Create or update a consumer. Raises BusError."""
    try:
        raw = await conn.api(f"CONSUMER.INFO.{durable.stream}.{durable.name}")
        if _same(durable.config(), msgspec.json.decode(raw)["config"]):
            return
    except ApiError as error:
        if error.code != _NO_CONSUMER:
            raise
    request = {"stream_name": durable.stream, "config": durable.config()}
    await conn.api(durable.create, request, timeout_s=_CHANGE_TRY_S)


async def _patiently(make: Callable[[], Awaitable[None]], name: str, deadline: float) -> None:
    loop = asyncio.get_running_loop()
    while True:
        try:
            await make()
            return
        except ApiError as error:
            if error.code not in _NOT_YET or loop.time() >= deadline:
                raise ApiError(error.code, f"{name}: {error.description}") from None
        # the change may have been made: the next try finds out
        except (NoAnswer, NotConnected) as error:
            if loop.time() >= deadline:
                raise NoAnswer(f"{name}: {error}") from error
        await asyncio.sleep(0.1)


async def _ensure(conn: Connection, config: dict[str, Any]) -> None:
    """Create or update one stream. Read the stream first: a restarting service must not make a NATS
    cluster agree on an unchanged configuration.
    """
    name = config["name"]
    try:
        raw = await conn.api(f"STREAM.INFO.{name}", timeout_s=_CHANGE_TRY_S)
    except ApiError as error:
        if error.code != NO_STREAM:
            raise
        try:
            made = config | {"metadata": {MAKING: new_making()}} | await _start(conn, name)
            await conn.api(f"STREAM.CREATE.{name}", made, timeout_s=_CHANGE_TRY_S)
            return
        except ApiError as second:
            if second.code != _NAME_IN_USE:  # another process was faster, with other limits
                raise
            raw = await conn.api(f"STREAM.INFO.{name}", timeout_s=_CHANGE_TRY_S)
    info = _INFO.decode(raw)
    live = info.config
    known = info.metadata | {MAKING: info.making}
    wanted = {**config, "metadata": known}
    if any(not _same(value, live.get(key)) for key, value in wanted.items()):
        await conn.api(f"STREAM.UPDATE.{name}", {**live, **wanted}, timeout_s=_CHANGE_TRY_S)


async def _start(conn: Connection, name: str) -> dict[str, int]:
    """Return the first sequence of a new FLEET, after the end of its log. So old and new facts
    never share sequences.
    """
    if name != FLEET:
        return {}
    log = await find_stream(conn, FLEET_LOG)
    return {"first_seq": log.state.last_seq + 1} if log is not None else {}


def _same(wanted: object, live: object) -> bool:
    """Return whether the server has the wanted value. Keys that the server adds to a dict are
    ignored.
    """
    if isinstance(wanted, dict) and isinstance(live, dict):
        return all(_same(value, live.get(key)) for key, value in wanted.items())
    return wanted == live or (live is None and wanted in (False, 0, ""))
