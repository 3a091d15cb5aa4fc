"""The agent as a process: with and without a source, with and without NATS, and its end."""

import ctypes
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from berthmaster.lib.nats.subjects import agent as agent_subject
from berthmaster.lib.supervisor.embedded import Server, ServerConfig
from berthmaster.worker.telemetry.emulated import EmulatedSource
from tests.pipeline.telemetry.tools import Agent, Listener
from tests.support.patience import wait_until

SCRIPTED = (sys.executable, str(Path(__file__).with_name("scripted_agent.py")))
NOBODY = "nats://127.0.0.1:9"  # the discard port, where nobody listens
PAGE = "http://HOST:PORT/metrics, or https"
QUICK = ("--interval-s", "0.1")


def driver_here() -> bool:
    """Whether this machine has an NVIDIA driver's library."""
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return False
    return True


without_driver = pytest.mark.skipif(driver_here(), reason="this machine has an NVIDIA driver")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / "nats", ServerConfig(sync="default")) as running:
        yield running


def emulated(server_url: str, *flags: str) -> Agent:
    return Agent("--nats-url", server_url, "--source", "emulated", *QUICK, *flags)


@without_driver
def test_a_machine_without_a_driver_gets_one_line_and_exit_code_3() -> None:
    with Agent("--source", "nvml", "--nats-url", NOBODY, "--log-level", "warning") as agent:
        assert agent.end() == 3
        assert len(agent.lines) == 1
        assert agent.events("cannot_start")[0]["why"] == (
            "no usable NVIDIA driver: NVML Shared Library Not Found (NVML error 12); use --source "
            "dcgm where a dcgm-exporter runs, or --source emulated to try the agent"
        )


@without_driver
def test_without_driver_and_exporter_auto_says_both_and_never_makes_gpus_up() -> None:
    with Agent("--nats-url", NOBODY, "--dcgm-url", "http://127.0.0.1:9/metrics") as agent:
        assert agent.end() == 3
        (line,) = [one for one in agent.lines if '"level":"error"' in one]
        assert "no usable NVIDIA driver" in line
        assert "no dcgm-exporter (http://127.0.0.1:9/metrics" in line
        assert "Traceback" not in "".join(agent.lines)


def test_a_setting_that_cannot_be_is_told_with_what_would_be_right() -> None:
    with Agent("--dcgm-url", "localhost:9400") as agent:
        assert agent.end() == 2
        assert agent.lines[-1] == (
            "Error: Invalid value for '--dcgm-url' (env var: 'BERTH_TELEMETRY_DCGM_URL'): "
            f"'localhost:9400' is not right, expected {PAGE}\n"
        )


def test_emulated_gpus_are_published_one_message_an_interval(server: Server) -> None:
    started_s = time.time()
    with Listener(server.url) as listener, emulated(server.url) as agent:
        heard = listener.wait(10)
        assert agent.get("/readyz")[0] == 200
        assert agent.stop() == 0
    assert {subject for subject, _ in listener.heard} == {agent_subject("c1", "telemetry")}
    assert [message.counter for message in heard] == list(range(1, 11))
    assert {message.epoch for message in heard} == {heard[0].epoch}
    assert started_s * 1000 <= heard[0].epoch <= time.time() * 1000
    assert (heard[0].cluster, heard[0].source, heard[0].interval_s) == ("c1", "emulated", 0.1)

    # What was published is what the source says, reading for reading.
    again = EmulatedSource(node="n1", gpus=8, model="a100", seed=0)
    assert [message.gpus for message in heard] == [again.read(0.0)[0].gpus for _ in heard]

    # A steady beat: ten messages are nine intervals, or more on a busy machine.
    took_s = heard[-1].observed_at_s - heard[0].observed_at_s
    assert took_s >= 0.85


def test_names_with_dots_and_spaces_travel_in_the_subject(server: Server) -> None:
    with (
        Listener(server.url) as listener,
        emulated(server.url, "--cluster", "my cluster.eu", "--node", "ip-10.local") as agent,
    ):
        (message,) = listener.wait(1, node="ip-10.local")
        assert agent.stop() == 0
    assert message.cluster == "my cluster.eu"
    assert listener.heard[0][0] == "berth.agent.my=20cluster=2Eeu.telemetry"


def test_a_restarted_agent_has_a_larger_epoch(server: Server) -> None:
    epochs = []
    for life in (1, 2):
        with Listener(server.url) as listener, emulated(server.url) as agent:
            (message,) = listener.wait(1)
            epochs.append(message.epoch)
            assert message.counter == 1, f"life {life}"
            assert agent.stop() == 0
    assert epochs[0] < epochs[1]


def test_while_nats_is_away_messages_are_dropped_and_counted_and_never_sent_later(
    server: Server,
) -> None:
    dropped = 'messages_dropped_total{why="not_connected"}'
    with Listener(server.url) as listener, emulated(server.url) as agent:
        listener.wait(3)
        server.stop()
        wait_until(lambda: agent.figure(dropped) >= 5, "five dropped messages")
        assert agent.get("/readyz")[0] == 503
        before = listener.messages()
        server.start()
        back_s = time.time()
        heard = listener.wait(len(before) + 3)
        assert agent.stop() == 0
    later = heard[len(before) :]
    assert all(message.observed_at_s > back_s - 0.5 for message in later)
    assert later[0].counter - before[-1].counter > 5  # the gap says how many are missing
    assert later[0].epoch == before[0].epoch


def test_the_agent_ends_at_once_though_it_never_found_nats() -> None:
    with emulated(NOBODY) as agent:
        agent.until("source_opened")
        code = agent.stop()
    assert code == 0


def test_a_read_that_hangs_is_told_and_recovered_from(server: Server, tmp_path: Path) -> None:
    obstacle = tmp_path / "obstacle"
    command = (*SCRIPTED, str(obstacle))
    flags = ("--nats-url", server.url, *QUICK)
    with Listener(server.url) as listener, Agent(*flags, command=command) as agent:
        listener.wait(2)
        obstacle.touch()
        agent.until("source_unreadable")
        assert agent.source_is(False, "a read has not come back for more than 0.3 s")
        before = listener.messages()
        assert agent.get("/healthz")[0] == 200  # the agent itself is well

        obstacle.unlink()
        agent.until("source_readable")
        listener.wait(len(before) + 2)
        assert agent.figure("reads_hung_total") == 1
        assert agent.figure("reads_late_total") == 1
        assert agent.figure("ticks_skipped_total") >= 3
        assert agent.stop() == 0


def test_a_read_that_hangs_does_not_keep_the_agent_from_ending(
    server: Server, tmp_path: Path
) -> None:
    obstacle = tmp_path / "obstacle"
    obstacle.touch()
    flags = ("--nats-url", server.url, *QUICK)
    with Agent(*flags, command=(*SCRIPTED, str(obstacle))) as agent:
        agent.until("source_unreadable")
        code = agent.stop()
        assert agent.events("source_left_behind")
    assert code == 0


def test_a_driver_that_hangs_while_it_is_opened_does_not_keep_the_agent_from_ending(
    tmp_path: Path,
) -> None:
    obstacle = tmp_path / "obstacle.open"
    obstacle.touch()
    with Agent("--nats-url", NOBODY, command=(*SCRIPTED, str(obstacle))) as agent:
        wait_until(lambda: agent.source_is(False, "not opened yet"), "readiness that says why")
        code = agent.stop()
    assert code == 0
