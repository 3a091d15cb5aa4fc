import asyncio
import hashlib
import os

import msgspec
import pytest

from berthmaster.lib.event_log import snapshots
from berthmaster.lib.event_log.snapshots import load, save
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import ApiError, BusError, TooLarge
from berthmaster.lib.nats.streams import SNAPSHOTS, stream_info
from berthmaster.lib.supervisor.embedded import Server
from tests.bus.proxy import proxied
from tests.bus.tools import Lines, connected, patiently, story, task
from tests.support.patience import ANSWER_S


async def chunk_subjects(conn: Connection) -> dict[str, int]:
    raw = await conn.api(f"STREAM.INFO.{SNAPSHOTS}", {"subjects_filter": "$O.SNAPSHOTS.C.>"})
    found: dict[str, int] = msgspec.json.decode(raw)["state"].get("subjects") or {}
    return found


@story
async def test_snapshot_load_returns_newest(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        assert await load(conn, "resolver-all") is None
        for number in range(5):
            await save(conn, "resolver-all", b"%d" % number * 300_000, keep=2)
            assert await load(conn, "resolver-all") == b"%d" % number * 300_000
        await save(conn, "resolver-all-2", b"another")
        assert await load(conn, "resolver-all") == b"4" * 300_000
        assert sorted((await chunk_subjects(conn)).values()) == [1, 2, 2]
        assert await load(conn, "resolver") is None
        await save(conn, "empty", b"")
        assert await load(conn, "empty") == b""


@story
async def test_a_name_may_be_any_text(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        await save(conn, "cell Köln.1/a", b"data")
        assert await load(conn, "cell Köln.1/a") == b"data"


@story
async def test_a_damaged_snapshot_is_passed_over_for_the_one_before(server: Server) -> None:
    log = Lines()
    async with connected(server.url, replicas=1, log=log) as conn:
        await save(conn, "s", b"first" * 100_000)
        before = set(await chunk_subjects(conn))
        await save(conn, "s", b"second" * 100_000)
        (newest,) = set(await chunk_subjects(conn)) - before
        await conn.request(
            newest, b"appended by mistake", timeout_s=ANSWER_S
        )  # behind the named chunks: no harm
        assert await load(conn, "s") == b"second" * 100_000
        await conn.api(f"STREAM.PURGE.{SNAPSHOTS}", {"filter": newest, "keep": 2})
        assert await load(conn, "s") == b"first" * 100_000
        assert log.count("snapshot damaged") == 1


@story
async def test_a_name_that_is_no_text_any_more_is_passed_over(server: Server) -> None:
    log = Lines()
    async with connected(server.url, replicas=1, log=log) as conn:
        await save(conn, "s", b"first")
        await save(conn, "s", b"second")
        newest = max(await snapshots._slots(conn, "s"), key=lambda slot: slot.sequence)
        subject = snapshots._meta_subject(snapshots._object_name("s", newest.number))
        await conn.store(subject, b'{"name":"\xff"}')
        assert await load(conn, "s") == b"first"
        assert log.count("snapshot name unreadable") == 1
        await conn.api(f"STREAM.PURGE.{SNAPSHOTS}", {"filter": "$O.SNAPSHOTS.C.>"})
        assert await load(conn, "s") is None
        await save(conn, "s", b"third")
        assert await load(conn, "s") == b"third"


@story
async def test_a_save_that_is_cut_short_leaves_the_one_before(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "PUT_TIMEOUT_S", 0.2)
    async with proxied(server.url) as proxy, connected(proxy.url, replicas=1) as conn:
        await save(conn, "s", b"first")
        # A saver that dies half-way: its chunks are there, the message that names them is not.
        proxy.to_server = lambda one: b"$O.SNAPSHOTS.M." in one.line and b"PUB" in one.line
        with pytest.raises(BusError):
            await save(conn, "s", b"x" * 1_000_000)
        proxy.to_server = lambda _: False
        assert await load(conn, "s") == b"first"
        assert len(await chunk_subjects(conn)) == 2
        # A later save clears that away, once it is old enough to be nobody's.
        await save(conn, "s", b"second")
        assert len(await chunk_subjects(conn)) == 3
        monkeypatch.setattr(snapshots, "ORPHANED_AFTER_S", -1.0)
        await save(conn, "s", b"third")
        assert len(await chunk_subjects(conn)) == 2
        assert await load(conn, "s") == b"third"


@story
async def test_saving_and_loading_go_on_over_a_kill_of_the_server(server: Server) -> None:
    data = os.urandom(20_000_000)
    async with connected(server.url, replicas=1) as conn:
        async with task(save(conn, "s", data)):
            await asyncio.sleep(0.02)
            server.kill()
            server.start()
        assert await patiently(lambda: load(conn, "s")) in (None, data)
        await patiently(lambda: save(conn, "s", data))
        server.kill()
        server.start()
        assert await patiently(lambda: load(conn, "s")) == data


@story
async def test_its_size_is_bounded(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "MAX_BYTES", 1000)
    async with connected(server.url, replicas=1) as conn:
        with pytest.raises(TooLarge, match="a snapshot of 1001 bytes; at most 1000"):
            await save(conn, "s", b"x" * 1001)
        with pytest.raises(ValueError, match="keep: 1 to 8, not 0"):
            await save(conn, "s", b"x", keep=0)
        assert (await stream_info(conn, SNAPSHOTS)).state.messages == 0


@story
async def test_without_the_stream_it_is_an_error_that_says_so(server: Server) -> None:
    async with connected(server.url) as conn:
        with pytest.raises(ApiError, match="stream not found"):
            await load(conn, "s")
        with pytest.raises(ApiError, match="stream not found"):
            await save(conn, "s", b"x")


@story
async def test_the_bucket_is_an_object_store_to_other_clients_too(server: Server) -> None:
    """The library's own object store reads what we save, and the other way round."""
    async with connected(server.url, replicas=1) as conn:
        data = os.urandom(700_000)
        await save(conn, "s", data, keep=1)
        store = await conn.nc.jetstream().object_store("SNAPSHOTS")
        found = await store.get("s.0")
        assert (found.data, found.info.size, found.info.chunks) == (data, 700_000, 3)
        info = await store.put("t.0", b"put by the library" * 10_000)
        assert (info.digest or "").startswith("SHA-256=")
        assert await load(conn, "t") == b"put by the library" * 10_000
        await store.delete("t.0")
        assert await load(conn, "t") is None
        assert (
            hashlib.sha256(await load(conn, "s") or b"").digest() == hashlib.sha256(data).digest()
        )
