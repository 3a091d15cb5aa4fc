"""The agent as a process, whoever listens to it, and an exporter for it to scrape."""

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self, TypeVar

import nats
from nats.aio.msg import Msg

from berthmaster.lib.messages.families import TELEMETRY
from berthmaster.lib.messages.telemetry import NodeTelemetry
from berthmaster.lib.nats.subjects import agent_of_all_clusters
from tests.support.patience import hang_s, wait_until

T = TypeVar("T")

SERVE = (sys.executable, "-m", "berthmaster.cli.main", "serve", "telemetry")


class Agent:
    """One process of the agent; its log is read as it comes."""

    def __init__(
        self, *flags: str, command: Sequence[str] = SERVE, env: dict[str, str] | None = None
    ) -> None:
        clean = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith("BERTH_") and key != "LD_LIBRARY_PATH"
        }
        self.process = subprocess.Popen(
            [*command, "--cluster", "c1", "--node", "n1", *flags],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**clean, **(env or {})},
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.decode())

    def events(self, name: str) -> list[dict[str, Any]]:
        """The lines of the log so far that tell of this."""
        told = (json.loads(line) for line in list(self.lines))
        return [line for line in told if line["event"] == name]

    def until(self, name: str) -> dict[str, Any]:
        return wait_until(lambda: self.events(name), f"{name!r} in {self.lines}")[0]

    def end(self) -> int:
        code = self.process.wait(hang_s())
        self._reader.join(hang_s())
        return code

    def stop(self) -> int:
        self.process.terminate()
        return self.end()

    def get(self, path: str) -> tuple[int, str]:
        port = self.until("starting")["http_port"]
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{port}{path}", timeout=hang_s()
            ) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def source_is(self, ok: bool, why: str = "") -> bool:
        _, text = self.get("/readyz")
        part = json.loads(text)["parts"].get("source")
        return part is not None and part["ok"] is ok and why in part["why"]

    def figure(self, name: str) -> float:
        """The value of one metric, labels included in the name; 0 if it is not there."""
        _, text = self.get("/metrics")
        for line in text.splitlines():
            if line.startswith(f"berth_telemetry_{name} "):
                return float(line.rpartition(" ")[2])
        return 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(hang_s())
        self._reader.join(hang_s())
        assert self.process.stderr is not None
        self.process.stderr.close()


class Listener:
    """Everything that is published under telemetry subjects, from a thread of its own."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.heard: list[tuple[str, NodeTelemetry]] = []

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._listen())
        finally:
            self._loop.close()

    async def _listen(self) -> None:
        connection = await nats.connect(
            self._url, reconnect_time_wait=0.05, max_reconnect_attempts=-1
        )

        async def hear(message: Msg) -> None:
            self.heard.append((message.subject, TELEMETRY.decode(message.data)))

        await connection.subscribe(agent_of_all_clusters("telemetry"), cb=hear)
        await connection.flush()
        self._ready.set()
        await self._stop.wait()
        await connection.close()

    def messages(self, node: str = "n1") -> list[NodeTelemetry]:
        return [message for _, message in list(self.heard) if message.node == node]

    def wait(self, count: int, node: str = "n1") -> list[NodeTelemetry]:
        def enough() -> list[NodeTelemetry] | None:
            heard = self.messages(node)
            return heard[:count] if len(heard) >= count else None

        return wait_until(enough, f"{count} messages of {node}")

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(hang_s())
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(hang_s())


class Exporter:
    """An HTTP server with one page, which misbehaves on demand."""

    def __init__(self) -> None:
        self.body = b""
        self.status = 200
        self.drip_s = 0.0  # pause between single bytes
        self.cut_short = 0  # bytes that are promised and not sent
        self.hang_up = False  # after the answer, without saying so
        self.connections = 0
        self.requests = 0
        self.port = 0
        self._server: ThreadingHTTPServer | None = None
        self._thread = threading.Thread()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/metrics"

    def start(self) -> None:
        """Listen, on the same port as before if there was one."""
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                exporter.connections += 1
                super().setup()

            def do_GET(self) -> None:
                exporter.requests += 1
                self.send_response(exporter.status)
                self.send_header("Content-Length", str(len(exporter.body)))
                self.end_headers()
                body = exporter.body
                if exporter.cut_short:
                    self.wfile.write(body[: -exporter.cut_short])
                    self.close_connection = True
                elif exporter.drip_s:
                    self._drip(body)
                else:
                    self.wfile.write(body)
                self.close_connection = self.close_connection or exporter.hang_up

            def _drip(self, body: bytes) -> None:
                try:
                    for place in range(len(body)):
                        self.wfile.write(body[place : place + 1])
                        time.sleep(exporter.drip_s)
                except OSError:
                    self.close_connection = True  # the agent has lost its patience

            def log_message(self, format: str, *args: object) -> None:
                """Silent."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            allow_reuse_address = True

        self._server = Server(("127.0.0.1", self.port), Handler)
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Be away; connections that are open stay so, as a handler's thread does."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join(hang_s())
            self._server = None


@contextmanager
def exporter() -> Iterator[Exporter]:
    made = Exporter()
    made.start()
    try:
        yield made
    finally:
        made.stop()
