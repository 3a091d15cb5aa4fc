"""Every stream of the system and what it is for. Made or brought up to date at start, by anyone.

WORKLOADS is the truth: file, atomic batches, no age limit, and full means refused. FLEET holds last
values; FLEET_LOG mirrors it, same sequences, for some days, so that a decision can be repeated on
what its decider saw. A change that a live stream cannot take (its storage, say) is an error here,
never a silent difference.

Which making of a stream it is, an id in its metadata tells, which whoever makes it draws. The time
at which it was made does not: of a restored stream each server tells another one. A stream that has
no id, made by somebody else, gets that time as its id, as its leader tells it now: so that it stays
the same for all who remember it.

Each has a limit. Where the newest counts, the oldest goes there: of FLEET that is history first,
since what is true is told again every hour. Where what was said must stay, the new is refused, and
its writer hears of it.
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
MAKING: Final = "berth.making"  # in a stream's metadata
REPLACES: Final = "berth.replaces"  # there, too: ids of incarnations that `berth recover` replaced
RECOVERING: Final = "berth.recovering"  # there while `berth recover` is at work on the stream
BUILDING: Final = "berth.building"  # there until the new stream has all
FIRST: Final = "berth.first"  # there of a stream that does not begin with sequence 1
_KIB: Final = 1024
_DAY_NS: Final = 86_400 * 10**9
NO_STREAM: Final = 10059
_NAME_IN_USE: Final = 10058
_NO_CONSUMER: Final = 10014
# A cluster that is still finding itself, or is making a stream that somebody else has asked for.
_NOT_YET: Final = frozenset({10004, 10008, 10009, NO_STREAM, 10118})
ENSURE_TIMEOUT_S: Final = 30.0
CONTROL_A_SUBJECT: Final = 4096  # the newest settings of one thing
_CHANGE_TRY_S: Final = 2.0  # servers that agree on the same change for two of us answer only one

# Followers hear what is stored, with its sequence. A subscription to the subjects themselves would
# also hear what the stream refused.
REPUBLISH: Final = {"src": "berth.>", "dest": subjects.ALL_STORED}

# Streams that followers hear, and all of their subjects.
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
    """The configuration of every stream, in the order in which they are made."""
    common: dict[str, Any] = {
        "retention": "limits",
        "storage": storage,
        "num_replicas": replicas,
        "allow_direct": True,
        "max_msgs": -1,
        "duplicate_window": 10**9,  # guards make writes safe; a long window only costs memory
    }
    # A purge is one message without a body, which answers of JetStream are, too. No service purges
    # these streams. The archivist alone deletes messages, and of WORKLOADS only.
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
            # Readers take the last; FLEET_LOG must get every one, also when it comes late: after a
            # server was lost it may be 13 s behind, and a busy cluster's score changes ten times a
            # second.
            "max_msgs_per_subject": 256,
            "max_bytes": 8 * GIB,
            "max_msg_size": 1024 * _KIB,
            "allow_msg_ttl": True,  # facts of things that come and go, see FactWriter.put
        },
        common
        | {
            "name": FLEET_LOG,
            "mirror": {"name": FLEET},
            # A copy: what a crash loses of it is fetched again, so no write waits for the disk.
            **({"persist_mode": "async"} if replicas == 1 and storage == "file" else {}),
            "discard": "old",
            "max_age": 3 * _DAY_NS,
            "max_bytes": 4 * GIB,  # its messages are FLEET's, and so is their size
        },
        common
        | undeleted
        | {
            "name": CONTROL,
            "discard": "new",
            # What was set is what decisions were made by, so it stays. A program that sets the same
            # thing for ever loses its oldest settings only, and can go on.
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
            "max_msgs_per_subject": 1000,  # of a service: one that buries much leaves others room
            "max_bytes": GIB,
            "max_msg_size": 128 * _KIB,  # a letter keeps 64 of its message, which grow by a third
        },
        common
        | {
            "name": LOG_ENDS,
            "subjects": [subjects.ALL_LOG_ENDS],
            "discard": "old",
            "max_age": _DAY_NS,
            # The last lines of pods that are gone: no write waits for the disk.
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
            "max_bytes": 256 * 1024 * _KIB,  # some hundred bytes a lease, some kilobytes a mark
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
    """What a server could not read of its files when it started."""

    bytes: int = 0


class StreamState(msgspec.Struct):
    """The part of a stream's state that we use."""

    messages: int = 0
    bytes: int = 0
    first_seq: int = 0
    last_seq: int = 0
    num_subjects: int = 0
    lost: LostData | None = None


def new_making() -> str:
    return secrets.token_hex(12)


def making_of(created: str, metadata: Mapping[str, str] | None) -> str:
    """Which making of a stream that is. Of one that has no id yet it is the time at which it
    was made, which becomes its id: whoever remembers it need not learn another one then."""
    return (metadata or {}).get(MAKING, created)


class StreamInfo(msgspec.Struct):
    """The part of STREAM.INFO that we use."""

    created: str
    state: StreamState
    config: dict[str, Any]  # whole, so that a stream can be made again as it was

    @property
    def metadata(self) -> dict[str, str]:
        return self.config.get("metadata") or {}

    @property
    def making(self) -> str:
        return making_of(self.created, self.metadata)

    @property
    def unfinished(self) -> bool:
        """Whether a `berth recover` that built it was cut short."""
        return BUILDING in self.metadata


_INFO: Final = msgspec.json.Decoder(StreamInfo)


async def stream_info(conn: Connection, stream: str, *, timeout_s: float = 5.0) -> StreamInfo:
    """Raises ApiError (NO_STREAM: no such stream), NoAnswer, NotConnected."""
    return _INFO.decode(await conn.api(f"STREAM.INFO.{stream}", timeout_s=timeout_s))


async def find_stream(conn: Connection, stream: str) -> StreamInfo | None:
    """What the server says of a stream; None = there is none. Raises as ``stream_info`` does."""
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
    """Make what is missing, update what differs. Safe to call from several places at once.

    Waits for a JetStream that is still starting. Raises ApiError, naming the stream, for what the
    server will not do, and NoAnswer when the time is over.
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
    """Make a consumer, or bring it up to date. Raises BusError."""
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
        except (NoAnswer, NotConnected) as error:  # it may have been done: looking again tells
            if loop.time() >= deadline:
                raise NoAnswer(f"{name}: {error}") from error
        await asyncio.sleep(0.1)


async def _ensure(conn: Connection, config: dict[str, Any]) -> None:
    """Look first: a service that restarts must not make a cluster agree on nothing new."""
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
            if second.code != _NAME_IN_USE:  # somebody else was quicker, with other limits
                raise
            raw = await conn.api(f"STREAM.INFO.{name}", timeout_s=_CHANGE_TRY_S)
    info = _INFO.decode(raw)
    live = info.config
    known = info.metadata | {MAKING: info.making}
    wanted = {**config, "metadata": known}
    if any(not _same(value, live.get(key)) for key, value in wanted.items()):
        await conn.api(f"STREAM.UPDATE.{name}", {**live, **wanted}, timeout_s=_CHANGE_TRY_S)


async def _start(conn: Connection, name: str) -> dict[str, int]:
    """A FLEET that is made again goes on behind its log: old and new facts never share numbers."""
    if name != FLEET:
        return {}
    log = await find_stream(conn, FLEET_LOG)
    return {"first_seq": log.state.last_seq + 1} if log is not None else {}


def _same(wanted: object, live: object) -> bool:
    """Whether the server has what we want; what it adds by itself inside a part does not count."""
    if isinstance(wanted, dict) and isinstance(live, dict):
        return all(_same(value, live.get(key)) for key, value in wanted.items())
    return wanted == live or (live is None and wanted in (False, 0, ""))
