"""All exporters of a cluster as one source, over real sockets."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from berthmaster.worker.telemetry.core.source import SourceFailed
from berthmaster.worker.telemetry.dcgm_fleet import LOOK_UP_S, DcgmFleet
from tests.support.exposition import A100, labels, page


@contextmanager
def exporters(port: int, pages: dict[str, bytes]) -> Iterator[int]:
    """One on each of these addresses of loopback, all on one port; the port."""
    servers: list[ThreadingHTTPServer] = []

    def handler(body: bytes) -> type[BaseHTTPRequestHandler]:
        class Page(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        return Page

    try:
        for where, body in pages.items():
            server = ThreadingHTTPServer((where, port), handler(body))
            port = server.server_address[1]
            servers.append(server)
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield port
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


def of_node(name: str) -> bytes:
    return page((labels(host=name, pod=f"pod-on-{name}"), A100))


def test_every_exporter_behind_a_name_is_read_and_those_that_go_cost_only_their_own_node() -> None:
    found = ["127.0.0.1", "127.0.0.2"]
    with exporters(0, {"127.0.0.1": of_node("n1"), "127.0.0.2": of_node("n2")}) as port:
        url = f"http://exporters.test:{port}/metrics"
        source = DcgmFleet(url=url, timeout_s=5.0, resolve=lambda host, port: found)
        nodes = source.read(0.0)
        assert sorted(node.node for node in nodes) == ["n1", "n2"]
        holders = {node.node: node.gpus[0].holders[0].pod for node in nodes}
        assert holders == {"n1": "pod-on-n1", "n2": "pod-on-n2"}
        assert [node.lacks for node in nodes] == [(), ()]

        # A third is there by name and does not answer; later the second has gone from the name.
        found.append("127.0.0.3")
        nodes = source.read(LOOK_UP_S)
        assert sorted(node.node for node in nodes) == ["n1", "n2"]
        (lack,) = [lack for node in nodes for lack in node.lacks]
        assert lack.startswith("dcgm-exporters: 1 of 3 do not answer (http://127.0.0.3:")
        found[:] = ["127.0.0.1"]
        assert [node.node for node in source.read(2 * LOOK_UP_S)] == ["n1"]
    with pytest.raises(SourceFailed):
        source.read(2 * LOOK_UP_S + 1)
    source.close()


def test_a_name_that_means_nothing_is_a_failure_and_not_an_empty_cluster() -> None:
    def unknown(host: str, port: int) -> list[str]:
        raise OSError(f"{host} is not known")

    source = DcgmFleet(url="http://exporters.test/metrics", timeout_s=1.0, resolve=unknown)
    with pytest.raises(SourceFailed, match=r"exporters\.test is not known"):
        source.read(0.0)
    source.close()


@pytest.mark.parametrize("error", [None, socket.EAI_NONAME, socket.EAI_NODATA])
def test_a_service_without_exporters_is_read_as_nothing(error: int | None) -> None:
    """Such as while all nodes with GPUs are scaled away."""
    found = ["127.0.0.1"]

    def resolve(host: str, port: int) -> list[str]:
        if not found and error is not None:
            raise socket.gaierror(error, "no such name")
        return found

    with exporters(0, {"127.0.0.1": of_node("n1")}) as port:
        url = f"http://exporters.test:{port}/metrics"
        source = DcgmFleet(url=url, timeout_s=5.0, resolve=resolve)
        assert [node.node for node in source.read(0.0)] == ["n1"]
        found.clear()
        assert source.read(LOOK_UP_S) == ()
        found.append("127.0.0.1")
        assert [node.node for node in source.read(2 * LOOK_UP_S)] == ["n1"]
    source.close()


def test_a_resolver_that_does_not_answer_changes_nothing() -> None:
    up = True

    def resolve(host: str, port: int) -> list[str]:
        if not up:
            raise socket.gaierror(socket.EAI_AGAIN, "try again")
        return ["127.0.0.1"]

    with exporters(0, {"127.0.0.1": of_node("n1")}) as port:
        url = f"http://exporters.test:{port}/metrics"
        source = DcgmFleet(url=url, timeout_s=5.0, resolve=resolve)
        source.read(0.0)
        up = False
        assert [node.node for node in source.read(LOOK_UP_S)] == ["n1"]
    source.close()
