"""A tiny service as a real process: how it starts, answers, and ends, in good and in bad."""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import hang_s, wait_until

TINY = Path(__file__).with_name("tiny_service.py")
SEED = "SUAM" + "A" * 54


class Tiny:
    """The process, and the lines of its log as far as they were read."""

    def __init__(self, *flags: str, env: dict[str, str] | None = None) -> None:
        clean = {key: value for key, value in os.environ.items() if not key.startswith("BERTH_")}
        self.process = subprocess.Popen(
            [sys.executable, str(TINY), *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**clean, **(env or {})},
        )
        self.events: list[dict[str, Any]] = []

    def until(self, event: str) -> dict[str, Any]:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.events.append(json.loads(line))
            if self.events[-1]["event"] == event:
                return self.events[-1]
        raise AssertionError(f"ended without {event!r}: {self.events}")

    def end(self) -> int:
        """Read the rest and return the exit code."""
        _, rest = self.process.communicate(timeout=hang_s())
        self.events += [json.loads(line) for line in rest.splitlines()]
        return self.process.returncode

    def event(self, name: str) -> dict[str, Any]:
        """The only event of this name."""
        (found,) = [event for event in self.events if event["event"] == name]
        return found

    def names(self) -> list[str]:
        return [event["event"] for event in self.events]


@contextmanager
def tiny(*flags: str, env: dict[str, str] | None = None) -> Iterator[Tiny]:
    service = Tiny(*flags, env=env)
    try:
        yield service
    finally:
        service.process.kill()
        service.process.wait(hang_s())
        for pipe in (service.process.stdout, service.process.stderr):
            if pipe:
                pipe.close()


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=hang_s()) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_the_service_and_the_exit_code_is_0(number: signal.Signals) -> None:
    with tiny() as service:
        service.until("up")
        service.process.send_signal(number)
        assert service.end() == 0
        assert service.names() == ["starting", "up", "stopping", "drained", "stopped"]
        assert service.event("stopping")["why"] == number.name


def test_being_asked_to_stop_twice_is_the_same_as_once() -> None:
    with tiny() as service:
        service.until("up")
        service.process.send_signal(signal.SIGINT)
        service.process.send_signal(signal.SIGTERM)
        assert service.end() == 0


def test_health_readiness_and_metrics_answer_and_other_paths_name_them() -> None:
    with tiny() as service:
        starting = service.until("starting")
        assert starting["open_files"] >= resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 0
        port = starting["http_port"]
        service.until("up")
        status, body = get(port, "/healthz")
        assert (status, json.loads(body)["alive"]) == (200, True)
        parts = {"bus": {"ok": True, "why": ""}}
        assert (200, {"ready": True, "why": "", "parts": parts}) == (
            (answer := get(port, "/readyz"))[0],
            json.loads(answer[1]),
        )
        status, body = get(port, "/metrics")
        assert status == 200
        assert "berth_tiny_jobs_total 2.0" in body
        assert "process_resident_memory_bytes" in body
        assert get(port, "/")[0] == 404


def test_a_slow_client_does_not_keep_the_others_from_their_answer() -> None:
    with tiny() as service:
        port = service.until("starting")["http_port"]
        with socket.create_connection(("127.0.0.1", port)) as dawdler:
            dawdler.sendall(b"GET /healthz HT")
            assert get(port, "/healthz")[0] == 200


def test_health_turns_503_when_the_event_loop_is_blocked() -> None:
    with tiny("--behaviour", "blocks") as service:
        port = service.until("starting")["http_port"]
        service.until("up")
        wait_until(lambda: get(port, "/healthz")[0] != 200, "it is found stuck", poll_s=0.05)
        status, body = get(port, "/healthz")
        assert (status, json.loads(body)["alive"]) == (503, False)
        status, body = get(port, "/readyz")
        assert (status, json.loads(body)["why"]) == (503, "event loop is stuck")


def test_a_main_that_ignores_stopping_is_ended_at_the_limit() -> None:
    with tiny("--behaviour", "deaf") as service:
        service.until("up")
        started_s = time.monotonic()
        service.process.terminate()
        assert service.end() == 4
        assert time.monotonic() - started_s > 3.5
        late = service.event("drain_limit")
        assert (late["level"], late["still_running"]) == ("error", ["main", "pump"])


def test_a_main_that_ignores_even_its_cancellation_is_left_behind() -> None:
    with tiny("--behaviour", "very-deaf") as service:
        service.until("up")
        service.process.terminate()
        assert service.end() == 4
        assert "main" in service.event("drain_limit")["still_running"]


def test_a_blocked_event_loop_cannot_keep_the_process_from_ending() -> None:
    with tiny("--behaviour", "blocks") as service:
        service.until("up")
        service.process.terminate()
        assert service.end() == 4
        assert service.event("drain_limit")["why"] == "the event loop is stuck"


def test_a_task_that_dies_ends_the_service_with_code_1() -> None:
    with tiny("--behaviour", "task-dies") as service:
        assert service.end() == 1
        died = service.event("task_died")
        assert (died["task"], died["error"]) == ("kitchen", "ValueError: out of cheese")
        assert "in _die" in died["traceback"]
        assert service.event("stopping")["why"] == "a task died"


def test_a_main_that_dies_is_told_once_with_code_1() -> None:
    with tiny("--behaviour", "main-dies") as service:
        assert service.end() == 1
        assert service.event("main_died")["error"] == "ValueError: out of cheese"


def test_a_main_that_waited_for_the_task_that_died_adds_nothing() -> None:
    with tiny("--behaviour", "task-dies-awaited") as service:
        assert service.end() == 1
        assert service.names() == ["starting", "up", "task_died", "stopping", "stopped"]


def test_a_task_that_lacks_something_gives_the_service_its_code() -> None:
    with tiny("--behaviour", "task-gives-up") as service:
        assert service.end() == 3
        told = service.event("cannot_go_on")
        assert (told["task"], told["why"]) == ("reader", "no NVIDIA driver on this machine")
        assert "traceback" not in told


def test_a_machine_that_lacks_something_gets_one_line_and_code_3() -> None:
    with tiny("--behaviour", "no-driver") as service:
        assert service.end() == 3
        told = service.event("cannot_start")
        assert told["why"] == "no NVIDIA driver on this machine"
        assert "traceback" not in told


def test_a_taken_port_is_told_with_code_3() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with tiny("--http-port", str(port)) as service:
            assert service.end() == 3
            assert f"--http-port {port}" in service.event("cannot_start")["why"]


def test_wrong_variable_is_named_and_the_exit_code_is_2() -> None:
    service = subprocess.run(
        [sys.executable, str(TINY)],
        env={**os.environ, "BERTH_LOG_LEVEL": "loud"},
        capture_output=True,
        text=True,
        check=False,
        timeout=hang_s(),
    )
    assert service.returncode == 2
    assert service.stderr.splitlines()[-1] == (
        "Error: Invalid value for '--log-level' (env var: 'BERTH_TINY_LOG_LEVEL', "
        "'BERTH_LOG_LEVEL'): 'loud' is not one of 'debug', 'info', 'warning', 'error'."
    )


def test_a_variable_that_nobody_reads_is_pointed_out() -> None:
    with tiny(env={"BERTH_TINY_LIMITS": "4"}) as service:
        assert service.until("unknown_setting")["variable"] == "BERTH_TINY_LIMITS"


def test_no_secret_reaches_the_log_by_any_way() -> None:
    flags = ("--behaviour", "tells-secrets", "--nats-creds-file", SEED)
    with tiny(*flags, "--nats-url", "nats://who:what@127.0.0.1:4222") as service:
        assert service.end() == 1
        everything = json.dumps(service.events)
        assert not any(secret in everything for secret in (SEED, "hunter2", "a:b", "who:what"))
        assert service.event("starting")["settings"]["nats_creds_file"] == "<hidden>"
        assert service.event("oops")["text"] == "seed <hidden>"
