"""The scorer on a real server: change, silence, return, two of them, and what is no good."""

import asyncio
import io
import math
import signal
from pathlib import Path
from unittest import mock

import click
import pytest
from msgspec.structs import replace

from berthmaster.control.scorer.settings import ScorerSettings
from berthmaster.lib.access.keys import creds_file
from berthmaster.lib.access.permissions import inbox_prefix
from berthmaster.lib.messages.families import LEASES, encode
from berthmaster.lib.messages.fleet import ClusterScore, Stamp
from berthmaster.lib.messages.records import Lease as LeaseRecord
from berthmaster.lib.messages.telemetry import NodeTelemetry
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.streams import ensure_streams
from berthmaster.lib.runtime.service import Context
from berthmaster.lib.runtime.settings import load
from berthmaster.lib.supervisor.embedded import Server, ServerConfig
from tests.bus.scoring import Fleet, scorer, scorer_process
from tests.bus.shells import client, in_loop
from tests.bus.tools import Lines, Settings, accounts_of
from tests.support.patience import ANSWER_S, until
from tests.unit.control.scorer.builders import gone, pod, profile, report, telemetry

LONG_LEASE_S = 10.0


@in_loop
async def test_a_change_is_a_score_on_the_bus_within_moments(server: Server) -> None:
    async with client(server.url) as conn, scorer(server.url):
        fleet = await Fleet(conn).start()
        await fleet.put(profile(nodes=2))
        await fleet.put(report("n1", gpus=4))
        await fleet.put(report("n2", gpus=2))
        score: ClusterScore = await fleet.score(nodes=2)
        assert (score.free_gpus, score.largest_gang, score.freshness) == (6.0, {"A100": 6}, "fresh")

        # A job takes two GPUs, then telemetry shows what they do.
        await fleet.put(report("n1", gpus=4, pods=(pod(0, 1),)))
        await fleet.score(free_gpus=4.0, idle_gpu_percent=None)
        await fleet.measure(telemetry(100, 100, 0, 0, node="n1"))
        await fleet.score(idle_gpu_percent=33.333, telemetry_nodes=1)
        await fleet.measure(telemetry(0, 0, node="n2"))
        await fleet.score(idle_gpu_percent=66.667)

        # The node leaves; what is told last is what stays on the bus for whoever comes late.
        await fleet.put(gone("n2"))
        last = await fleet.score(nodes=1, idle_gpu_percent=50.0)
        late = await Fleet(conn).start()
        async with scorer(server.url, shard="1/1", stale_after_s=1000.0):
            pass
        assert late.scores == []  # a standby tells nothing
        stamps = [each.stamp for each in fleet.scores]
        assert stamps == sorted(stamps)
        assert len(set(stamps)) == len(stamps)
        assert last.stamp == stamps[-1]


@pytest.mark.parametrize("how", ["killed", "stopped"])
@in_loop
async def test_standby_scorer_takes_over(server: Server, how: str) -> None:
    flags = ("--http-port", "-1")
    async with client(server.url) as conn:
        fleet = await Fleet(conn).start()
        await fleet.put(report(gpus=4))
        with scorer_process(server.url, *flags) as first:
            before = await fleet.score(free_gpus=4.0)
            with scorer_process(server.url, *flags):
                await asyncio.sleep(1.0)  # the second has started, and stands by
                assert {score.stamp.epoch for score in fleet.scores} == {before.stamp.epoch}

                first.send_signal(signal.SIGKILL if how == "killed" else signal.SIGSTOP)
                told = len(fleet.scores)
                epoch = before.stamp.epoch
                await until(lambda: fleet.scores[-1].stamp.epoch > epoch)

                # It had computed all along: the first it tells is right.
                taken = [s for s in fleet.scores[told:] if s.stamp.epoch > epoch]
                assert (taken[0].free_gpus, taken[0].stamp.counter) == (4.0, 1)
                await fleet.put(report(gpus=4, pods=(pod(0),)))
                second = await fleet.score(free_gpus=3.0)

                # The one that was stopped wakes late: whatever it may have in hand is older.
                if how == "stopped":
                    first.send_signal(signal.SIGCONT)
                    await asyncio.sleep(1.0)
                    last = fleet.last()
                    assert last is not None
                    assert last.stamp.epoch == second.stamp.epoch
                    assert fleet.scores[-1].stamp.epoch == second.stamp.epoch


@mock.patch("berthmaster.control.scorer.service.LEASE_TTL_S", LONG_LEASE_S)
@in_loop
async def test_a_scorer_that_is_asked_to_stop_hands_over_at_once(server: Server) -> None:
    async with client(server.url) as conn:
        fleet = await Fleet(conn).start()
        await fleet.put(report(gpus=4))
        # The second takes the lease that the first has released, and waits for none to run out.
        told: list[LeaseRecord] = []
        await conn.subscribe("berth.lease.>", lambda _, data: told.append(LEASES.decode(data)))
        lasting = {"refresh_s": 0.1}
        async with scorer(server.url, **lasting) as first:
            before = await fleet.score(free_gpus=4.0)
            async with scorer(server.url, **lasting):
                first.stopping.set()
                await until(lambda: fleet.scores[-1].stamp.epoch > before.stamp.epoch)
        last = max(n for n, record in enumerate(told) if record.holder == told[0].holder)
        assert told[last].released


@in_loop
async def test_the_server_is_killed_and_scores_go_on_from_what_is_there(server: Server) -> None:
    async with client(server.url) as conn, scorer(server.url, refresh_s=0.3):
        fleet = await Fleet(conn).start()
        await fleet.put(report(gpus=4))
        await fleet.score(free_gpus=4.0)
        server.kill()
        await asyncio.sleep(0.3)
        server.start()
        await until(lambda: conn.connected)
        told = len(fleet.scores)
        await until(lambda: len(fleet.scores) > told + 1)
        await fleet.put(report(gpus=4, pods=(pod(0, 1),)))
        await fleet.score(free_gpus=2.0)


# What is no good


FUTURE_S = 4e9
BAD_TELEMETRY: list[tuple[NodeTelemetry, str]] = [
    (telemetry(0.0, observed_at_s=FUTURE_S), "from_the_future"),
    (telemetry(0.0, interval_s=0.0), "absurd"),
    (telemetry(0.0, node="nobody"), "unknown_node"),
    (telemetry(50.0, counter=1), "old"),  # repeated
]


@in_loop
async def test_telemetry_that_is_no_good_moves_nothing_and_is_counted(server: Server) -> None:
    async with client(server.url) as conn, scorer(server.url) as ctx:
        fleet = await Fleet(conn).start()
        await fleet.put(report(gpus=1))
        await fleet.score(nodes=1)
        await fleet.measure(telemetry(50.0, counter=1, interval_s=60.0))
        await fleet.score(idle_gpu_percent=50.0)

        reasons = ["wrong_subject"]
        for told, why in BAD_TELEMETRY:
            await conn.publish(subjects.telemetry(told.cluster, told.node), encode(told))
            reasons.append(why)
        good = replace(telemetry(10.0, counter=2), observed_at_s=conn.now())
        await conn.publish(subjects.telemetry("east", "n2"), encode(good))  # for another node
        bad_bytes = [
            b"",
            b"\xff",
            b"{",
            encode(good).replace(b"10.0", b"NaN"),
            encode(good).replace(b"10.0", b"1e400"),
            encode(good).replace(b"10.0", b"-3"),
            encode(good).replace(b"telemetry.node.v1", b"telemetry.node.v2"),
            encode(good).replace(b'"counter":2', b'"counter":"2"'),
            encode(good).replace(b'"counter":2', b'"counter":-1'),
        ]
        for body in bad_bytes:
            await conn.publish(subjects.telemetry("east", "n1"), body)

        def counted() -> dict[str, float]:
            return {
                sample.labels["reason"]: sample.value
                for metric in ctx.metrics.registry.collect()
                for sample in metric.samples
                if sample.name == "berth_scorer_messages_dropped_total"
                and sample.labels["kind"] == "telemetry"
            }

        expected = {why: float(reasons.count(why)) for why in reasons}
        await until(lambda: counted() == expected | {"undecodable": float(len(bad_bytes))})
        # The dead letters tell which, with the bytes.
        await until(lambda: len(fleet.letters) == 10)
        assert {letter.reason.split(":")[0] for letter in fleet.letters} == {
            "undecodable",
            "wrong_subject",
        }
        # None of it showed, and what is right still counts.
        assert [s.idle_gpu_percent for s in fleet.scores[-2:]] == [None, 50.0]
        await fleet.measure(good)
        await fleet.score(idle_gpu_percent=90.0)


@in_loop
async def test_a_score_that_somebody_else_wrote_is_outbid_and_no_input(server: Server) -> None:
    async with client(server.url) as conn:
        fleet = await Fleet(conn).start()
        await fleet.put(report(gpus=4))
        far = Stamp(epoch=2**53, counter=1)  # a scorer whose clock was far ahead
        foreign = ClusterScore(cluster="east", stamp=far, freshness="fresh", input_age_s=0.0)
        await conn.request(subjects.score("east"), encode(foreign), timeout_s=ANSWER_S)
        async with scorer(server.url):
            score = await fleet.score(free_gpus=4.0)
            assert score.stamp > far
            assert not math.isnan(score.input_age_s)


# The process, and its permissions


@in_loop
async def test_its_user_may_do_all_that_it_does(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    extra = accounts_of(keys, ("setup", "door", "scorer"))
    config = ServerConfig(sync="default", extra=extra)
    with Server(tmp_path / "nats", config) as server:
        log = Lines()

        def settings(user: str) -> Settings:
            return Settings(server.url, creds_file(keys, user), inbox_prefix(user))

        async with await Connection.open(
            settings("setup"), "setup", log, timeout_s=ANSWER_S
        ) as conn:
            await ensure_streams(conn)
        async with await Connection.open(
            settings("door"), "fleet", log, timeout_s=ANSWER_S
        ) as conn:
            fleet = Fleet(conn)
            fleet.writer.epoch = 1
            await fleet.put(report(gpus=4))
            async with scorer(
                server.url,
                nats_creds_file=creds_file(keys, "scorer"),
                inbox_prefix=inbox_prefix("scorer"),
                refresh_s=0.2,
            ) as ctx:
                stored = ctx.metrics.counter("scores", "Stored scores", ("freshness",))
                await until(lambda: stored.labels("fresh")._value.get() >= 3)
                await conn.publish(subjects.telemetry("east", "n1"), b"not json")
                dropped = ctx.metrics.counter(
                    "messages_dropped",
                    "Ignored messages by kind and reason",
                    ("kind", "reason"),
                )
                await until(lambda: dropped.labels("telemetry", "undecodable")._value.get() == 1)
                await asyncio.sleep(0.2)  # a violation is told beside everything else
                assert "violation" not in logged(ctx)


def logged(ctx: Context[ScorerSettings]) -> str:
    stream = ctx.log._stream
    assert isinstance(stream, io.BytesIO)
    return stream.getvalue().decode()


@in_loop
async def test_sigterm_ends_it_with_0_even_while_the_bus_is_away(server: Server) -> None:
    async with client(server.url) as conn:
        fleet = await Fleet(conn).start()
        await fleet.put(report(gpus=4))
        with scorer_process(server.url, "--http-port", "-1") as process:
            await fleet.score(free_gpus=4.0)
            server.kill()
            await asyncio.sleep(0.2)
            process.terminate()
            assert await asyncio.to_thread(process.wait, 5.0) == 0


@pytest.mark.parametrize(
    ("flag", "value", "expected"),
    [
        ("--shard", "9/8", "INDEX/COUNT such as 2/8, the index from 1 to the count"),
        ("--cluster-full-scale", "1,2", "four numbers with commas between them: cores, GiB, GPUs"),
        ("--stale-after-s", "-1", "-1.0 is not in the range 0.1<=x<=86400"),
    ],
)
def test_a_wrong_setting_is_named_with_what_would_be_right(
    flag: str, value: str, expected: str
) -> None:
    with pytest.raises(click.UsageError) as told:
        load(ScorerSettings, "scorer", [flag, value])
    assert f"'{flag}' (env var: " in told.value.format_message()
    assert expected in told.value.format_message()
