"""Traces of jobs as a collector gets them: OTLP over HTTP from a usage service on a real bus."""

import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import click
import pytest

from berthmaster.control.usage.service import main as usage_main
from berthmaster.control.usage.settings import UsageSettings
from berthmaster.lib.runtime.service import Context
from berthmaster.lib.runtime.settings import load
from berthmaster.lib.supervisor.embedded import Server
from tests.bus.shells import client, in_loop, running
from tests.bus.test_usage import jobs_until, tell
from tests.support.patience import until
from tests.unit.control.usage.stories import Story

pytest.importorskip("opentelemetry.sdk")


class Collector:
    """Takes OTLP over HTTP, as long as it is not told to refuse or to hang."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.services: set[str] = set()
        self.status = 200
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.requests = 0
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector.take(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1/traces"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def take(self, request: BaseHTTPRequestHandler) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
            ExportTraceServiceRequest,
        )

        body = request.rfile.read(int(request.headers["Content-Length"]))
        self.requests += 1
        self.goes_on.wait()
        if self.status == 200:
            assert request.headers["Content-Type"] == "application/x-protobuf"
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.services |= {
                    one.value.string_value
                    for one in resource.resource.attributes
                    if one.key == "service.name"
                }
                self.spans += [span for scope in resource.scope_spans for span in scope.spans]
        request.send_response(self.status)
        request.send_header("Content-Length", "0")
        request.end_headers()

    def close(self) -> None:
        self.goes_on.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()
    yield found
    found.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / "nats") as started:
        yield started


@asynccontextmanager
async def usage(server: Server, tmp_path: Path, url: str) -> AsyncIterator[Context[UsageSettings]]:
    chosen = UsageSettings(
        nats_url=server.url, http_port=-1, store_dir=tmp_path / "usage", traces_endpoint=url
    )
    async with running("usage", chosen, usage_main) as ctx:
        yield ctx


def ended(name: str, now_s: float) -> Story:
    return Story(name).submitted(now_s).placed(now_s).claimed(now_s).running(now_s).succeeded(now_s)


def counted(ctx: Context[UsageSettings], result: str) -> float:
    value = ctx.metrics.registry.get_sample_value
    return value("berth_usage_spans_total", {"result": result}) or 0.0


@in_loop
async def test_collector_gets_the_phases_of_a_job_under_one_trace(
    server: Server, tmp_path: Path, collector: Collector
) -> None:
    async with client(server.url) as conn, usage(server, tmp_path, collector.url):
        await tell(conn, ended("train-1", conn.now()))
        await until(lambda: len(collector.spans) >= 5, "five spans", moves=lambda: collector.spans)
    by_name = {span.name: span for span in collector.spans}
    assert sorted(by_name) == ["claim", "decision", "job", "run", "start"]
    job = by_name.pop("job")
    assert {span.trace_id for span in by_name.values()} == {job.trace_id}
    assert {span.parent_span_id for span in by_name.values()} == {job.span_id}
    assert job.parent_span_id == b""
    times = [by_name[name] for name in ("decision", "claim", "start", "run")]
    ends = [span.end_time_unix_nano for span in times]
    assert [span.start_time_unix_nano for span in times] == [job.start_time_unix_nano, *ends[:-1]]
    attributes = {one.key: one.value for one in by_name["decision"].attributes}
    assert attributes["berthmaster.cause"].string_value == "decision/all/1"
    assert collector.services == {"berthmaster"}


@in_loop
async def test_collector_that_hangs_or_refuses_delays_no_booking(
    server: Server, tmp_path: Path, collector: Collector
) -> None:
    collector.goes_on.clear()
    async with client(server.url) as conn, usage(server, tmp_path, collector.url) as ctx:
        await tell(conn, ended("one", conn.now()))
        await until(lambda: collector.requests == 1, "a request that hangs")
        await tell(conn, ended("two", conn.now()))
        assert set(await jobs_until(conn, 2)) == {"one", "two"}
        assert collector.spans == []
        collector.status = 400
        collector.goes_on.set()
        await until(lambda: counted(ctx, "failed") >= 1, "failed spans are counted")
        collector.status = 200
        await tell(conn, ended("three", conn.now()))
        await until(lambda: any(span.name == "job" for span in collector.spans), "a later trace")


@in_loop
async def test_usage_without_endpoint_imports_no_exporter(server: Server, tmp_path: Path) -> None:
    before = {name for name in sys.modules if name.startswith("opentelemetry.exporter")}
    async with client(server.url) as conn, usage(server, tmp_path, "") as ctx:
        await tell(conn, ended("quiet", conn.now()))
        await jobs_until(conn, 1)
        assert counted(ctx, "sent") == counted(ctx, "failed") == 0
    after = {name for name in sys.modules if name.startswith("opentelemetry.exporter")}
    assert after == before


@pytest.mark.parametrize("url", ["collector:4318", "ftp://c/v1/traces", "http://u:p@c/v1/traces"])
def test_endpoint_that_cannot_be_is_refused_with_what_would_be_right(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTH_USAGE_TRACES_ENDPOINT", url)
    with pytest.raises(click.UsageError, match=r"http\[s\]://HOST:PORT/v1/traces"):
        load(UsageSettings, "usage")
