import asyncio
from functools import partial
from typing import Any

import msgspec
import pytest

from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import ApiError, NoAnswer
from berthmaster.lib.nats.stream_reads import next_message, read_fleet_history
from berthmaster.lib.nats.streams import (
    CONTROL,
    DEAD,
    FLEET,
    FLEET_LOG,
    GIB,
    MAKING,
    WORKLOADS,
    ensure_streams,
    stream_configs,
    stream_info,
)
from berthmaster.lib.supervisor.embedded import Server, ServerCluster
from tests.bus.tools import alive_subject, connected, eventually, patiently, story
from tests.support.patience import ANSWER_S, until


async def configs(conn: Connection) -> dict[str, dict[str, Any]]:
    found = {}
    for config in stream_configs():
        name = config["name"]
        found[name] = msgspec.json.decode(await conn.api(f"STREAM.INFO.{name}"))["config"]
    return found


def spy_on(conn: Connection, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The subjects of the API requests from now on."""
    asked: list[str] = []
    api = conn.api

    async def spying(subject: str, *args: Any, **more: Any) -> bytes:
        asked.append(subject)
        return await api(subject, *args, **more)

    monkeypatch.setattr(conn, "api", spying)
    return asked


@story
async def test_making_them_again_changes_nothing_and_asks_for_no_change(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(server.url, replicas=1) as conn:
        before = await configs(conn)
        assert set(before) == {config["name"] for config in stream_configs()}
        asked = spy_on(conn, monkeypatch)
        await ensure_streams(conn)
        assert all(subject.split(".")[1] == "INFO" for subject in asked)
        assert await configs(conn) == before


@story
async def test_stream_without_id_gets_remembered_id(server: Server) -> None:
    async with connected(server.url) as conn:
        (config,) = (each for each in stream_configs() if each["name"] == WORKLOADS)
        await conn.api(f"STREAM.CREATE.{WORKLOADS}", config | {"metadata": {"of": "others"}})
        before = await stream_info(conn, WORKLOADS)
        await ensure_streams(conn)
        after = await stream_info(conn, WORKLOADS)
        assert after.making == before.making == before.created
        assert after.metadata["of"] == "others"
        assert after.metadata[MAKING] == before.created

        # What it says counts from then on, and a change of limits keeps it.
        restored = config | {"metadata": {MAKING: "of a restore"}}
        await conn.api(f"STREAM.UPDATE.{WORKLOADS}", restored)
        await ensure_streams(conn, workloads_max_bytes=GIB)
        assert (await stream_info(conn, WORKLOADS)).making == "of a restore"


@story
async def test_many_may_make_them_at_once(server: Server) -> None:
    async with connected(server.url, "a") as a, connected(server.url, "b") as b:
        await asyncio.gather(*(ensure_streams(conn) for conn in (a, b) * 4))
        assert len(await configs(a)) == 9


@story
async def test_many_may_make_them_at_once_on_three_servers(cluster: ServerCluster) -> None:
    one, two, _ = cluster.urls
    async with connected(one, "a") as a, connected(two, "b") as b:
        await asyncio.gather(*(ensure_streams(conn, replicas=3) for conn in (a, b) * 2))
        assert {config["num_replicas"] for config in (await configs(a)).values()} == {3}


@story
async def test_a_limit_that_changed_is_updated_and_the_messages_stay(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        await conn.request("berth.workload.a.b.submitted.-", b"{}", timeout_s=ANSWER_S)
        created = (await stream_info(conn, WORKLOADS)).created
        await ensure_streams(conn, workloads_max_bytes=GIB)
        info = await stream_info(conn, WORKLOADS)
        assert (info.config["max_bytes"], info.state.messages, info.created) == (GIB, 1, created)


@story
async def test_impossible_stream_change_names_stream(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        with pytest.raises(ApiError, match=r"stream WORKLOADS: .*storage"):
            await ensure_streams(conn, storage="memory")
        with pytest.raises(ApiError, match="stream WORKLOADS: replicas > 1 not supported"):
            await ensure_streams(conn, replicas=3)


@story
async def test_another_stream_on_our_subjects_is_an_error_that_names_ours(server: Server) -> None:
    async with connected(server.url) as conn:
        await conn.api("STREAM.CREATE.MINE", {"name": "MINE", "subjects": ["berth.fleet.>"]})
        with pytest.raises(ApiError, match="stream FLEET: subjects overlap"):
            await ensure_streams(conn)


@story
async def test_a_server_that_does_not_answer_yet_is_waited_for(server: Server) -> None:
    async with connected(server.url) as conn:
        server.pause()
        making = asyncio.create_task(ensure_streams(conn))
        await asyncio.sleep(0.1)
        assert not making.done()
        server.resume()
        await making
        assert len(await configs(conn)) == 9


@story
async def test_a_server_that_never_answers_is_an_error_in_time(server: Server) -> None:
    async with connected(server.url) as conn:
        server.kill()
        await until(lambda: not conn.connected)
        with pytest.raises(NoAnswer, match="stream WORKLOADS"):
            await ensure_streams(conn, timeout_s=0.1)


async def raw(conn: Connection, stream: str, sequence: int) -> dict[str, Any]:
    """Everything that the stream has of one message."""
    answer = await conn.api(f"STREAM.MSG.GET.{stream}", {"seq": sequence})
    message: dict[str, Any] = msgspec.json.decode(answer)["message"]
    return message


@story
async def test_the_fleets_log_has_every_value_at_its_sequence_and_its_time(server: Server) -> None:
    """A decision is repeated on what its decider saw: FLEET forgets it, FLEET_LOG must not."""
    async with connected(server.url, replicas=1) as conn:
        await conn.request(alive_subject("c0"), b"0", timeout_s=ANSWER_S)

        async def mirrored(count: int) -> bool:
            return (await stream_info(conn, FLEET_LOG)).state.messages == count

        await eventually(lambda: mirrored(1))  # the mirror follows from now on
        # As fast as they go: each of eight subjects is replaced 375 times, far beyond its history.
        wrote: dict[int, tuple[str, bytes]] = {}
        for start in range(1, 3001, 200):
            batch = range(start, min(start + 200, 3001))
            replies = await asyncio.gather(
                *(
                    conn.request(alive_subject(f"c{n % 8}"), b"%d" % n, timeout_s=ANSWER_S)
                    for n in batch
                )
            )
            for n, reply in zip(batch, replies, strict=True):
                sequence = msgspec.json.decode(reply.data)["seq"]
                wrote[sequence] = (alive_subject(f"c{n % 8}"), b"%d" % n)
        await eventually(lambda: mirrored(1 + len(wrote)))
        fleet, log = await stream_info(conn, FLEET), await stream_info(conn, FLEET_LOG)
        assert log.state.last_seq == fleet.state.last_seq
        assert fleet.state.messages <= 8 * 256 + 1
        for sequence in sorted(wrote)[:: len(wrote) // 100]:
            message = await next_message(conn, FLEET_LOG, ">", sequence)
            assert message is not None
            assert (message.sequence, message.subject, message.data) == (sequence, *wrote[sequence])
        for sequence in sorted(wrote)[-10:]:
            assert await raw(conn, FLEET_LOG, sequence) == await raw(conn, FLEET, sequence)


@story
async def test_the_fleets_log_goes_on_over_a_kill_of_the_server(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        for number in range(1, 51):
            await patiently(
                partial(conn.request, alive_subject("c0"), b"%d" % number, timeout_s=ANSWER_S)
            )
            if number % 20 == 0:
                server.kill()
                server.start()

        async def level() -> bool:
            fleet, log = await stream_info(conn, FLEET), await stream_info(conn, FLEET_LOG)
            return log.state.last_seq == fleet.state.last_seq

        await eventually(level)
        last = (await stream_info(conn, FLEET)).state.last_seq
        assert await raw(conn, FLEET_LOG, last) == await raw(conn, FLEET, last)


async def written_and_mirrored(conn: Connection, count: int) -> None:
    """The first facts, numbered from 0, which the fleet's log has all got."""
    for number in range(count):
        await conn.request(alive_subject("c0"), b"%d" % number, timeout_s=ANSWER_S)

    async def mirrored() -> bool:
        return (await stream_info(conn, FLEET_LOG)).state.last_seq == count

    await eventually(mirrored)


@story
async def test_the_fleets_history_is_whole_while_its_log_is_behind(server: Server) -> None:
    """As for many seconds after a server was lost: what the mirror lacks, FLEET still has."""
    async with connected(server.url, replicas=1) as conn:
        await written_and_mirrored(conn, 10)
        (config,) = [each for each in stream_configs() if each["name"] == FLEET_LOG]
        on_its_own = {key: value for key, value in config.items() if key != "mirror"}
        await conn.api("STREAM.UPDATE.FLEET_LOG", on_its_own | {"subjects": ["nothing.at.all"]})
        for number in range(10, 15):
            await conn.request(alive_subject("c0"), b"%d" % number, timeout_s=ANSWER_S)
        assert (await stream_info(conn, FLEET_LOG)).state.last_seq == 10
        read: list[tuple[int, bytes]] = []
        await read_fleet_history(conn, lambda found: read.append((found.sequence, found.data)))
        assert read == [(number + 1, b"%d" % number) for number in range(15)]


@story
async def test_a_fleet_that_is_made_again_never_reuses_a_number_of_its_log(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        await written_and_mirrored(conn, 20)
        await conn.api("STREAM.DELETE.FLEET")
        await ensure_streams(conn)
        reply = await conn.request(alive_subject("c0"), b"new", timeout_s=ANSWER_S)
        assert msgspec.json.decode(reply.data)["seq"] == 21
        assert (await stream_info(conn, FLEET_LOG)).state.last_seq == 20


async def shrink(conn: Connection, stream: str, max_bytes: int) -> None:
    """Bring its limit of size within a test's reach; what happens there stays as it is."""
    live = msgspec.json.decode(await conn.api(f"STREAM.INFO.{stream}"))["config"]
    await conn.api(f"STREAM.UPDATE.{stream}", {**live, "max_bytes": max_bytes})


async def subjects_of(conn: Connection, stream: str) -> dict[str, int]:
    raw = await conn.api(f"STREAM.INFO.{stream}", {"subjects_filter": ">"})
    found = msgspec.json.decode(raw)["state"]["subjects"]
    assert isinstance(found, dict)
    return found


@story
async def test_where_the_newest_counts_the_oldest_goes_at_the_limit(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        for stream, subject in ((FLEET, "berth.fleet.c{}.alive"), (DEAD, "berth.dead.s{}")):
            await shrink(conn, stream, 64 * 1024)
            for number in range(20):
                await conn.store(subject.format(number), bytes(8000))
            kept = await subjects_of(conn, stream)
            assert list(kept) == sorted(subject.format(number) for number in range(12, 20))


@story
async def test_what_was_set_stays_at_the_limit_and_who_sets_more_is_told(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        await shrink(conn, CONTROL, 64 * 1024)
        for number in range(8):
            await conn.store(f"berth.control.queue.q{number}", bytes(8000))
        for _ in range(2):
            with pytest.raises(ApiError, match="maximum bytes exceeded"):
                await conn.store("berth.control.queue.q9", bytes(8000))
        assert len(await subjects_of(conn, CONTROL)) == 8
        await shrink(conn, CONTROL, 128 * 1024)  # an operator made room
        await conn.store("berth.control.queue.q9", bytes(8000))


@story
async def test_no_service_fills_the_dead_letters_of_all(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        await conn.store("berth.dead.scorer", b"{}")
        for _ in range(1100):
            await conn.publish("berth.dead.gateway", b"{}")
        await conn.store("berth.dead.gateway", b"{}")
        assert await subjects_of(conn, DEAD) == {"berth.dead.gateway": 1000, "berth.dead.scorer": 1}


@story
async def test_a_message_that_is_too_large_for_its_stream_is_refused(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        for subject, most in (("berth.dead.gateway", 128), ("berth.control.queue.q", 256)):
            await conn.store(subject, bytes(most * 1024))
            with pytest.raises(ApiError, match="message size exceeds maximum"):
                await conn.store(subject, bytes(most * 1024 + 1))
        assert conn.write_health.failures == 0  # that says nothing of the store


@story
async def test_streams_of_an_earlier_version_get_their_limits_and_keep_what_they_have(
    server: Server,
) -> None:
    limits = ("max_bytes", "max_msg_size", "max_msgs_per_subject")
    async with connected(server.url) as conn:
        for config in stream_configs():
            name = config["name"]
            earlier = dict(config)
            if name in (FLEET, CONTROL, DEAD):
                for limit in limits:
                    earlier.pop(limit, None)
            await conn.api(f"STREAM.CREATE.{name}", earlier)
        for _ in range(1200):
            await conn.publish("berth.dead.gateway", b"{}")
        await conn.store("berth.fleet.c1.alive", b"{}")
        await conn.store("berth.control.queue.q", b"{}")
        await ensure_streams(conn)
        wanted = {config["name"]: config for config in stream_configs()}
        live = await configs(conn)
        for name in (FLEET, CONTROL, DEAD):
            assert [live[name][limit] for limit in limits] == [
                wanted[name][limit] for limit in limits
            ]
        assert [await subjects_of(conn, name) for name in (FLEET, CONTROL, DEAD)] == [
            {"berth.fleet.c1.alive": 1},
            {"berth.control.queue.q": 1},
            {"berth.dead.gateway": 1000},
        ]


@story
async def test_streams_of_record_refuse_purge_and_delete(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        for stream in ("WORKLOADS", "CONTROL", "ARCHIVE", "DEAD"):
            with pytest.raises(ApiError, match="purge"):
                await conn.api(f"STREAM.PURGE.{stream}")
        for stream in ("CONTROL", "ARCHIVE", "DEAD"):
            with pytest.raises(ApiError, match="delet"):
                await conn.api(f"STREAM.MSG.DELETE.{stream}", {"seq": 1})
