"""What stands for the kubelet of nodes that have none, where an API server asks it for logs."""

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from berthmaster.lab.controlplane.api import Api
from berthmaster.lab.controlplane.certificates import LOOPBACK, Authority

WRITTEN = "/containerLogs/"


class Logs:
    """The logs of pods, by their names' beginnings."""

    def __init__(self) -> None:
        self.by_job: dict[str, bytes] = {}
        self.port = 0

    def of(self, pod: str) -> bytes | None:
        """None: there is no such pod here."""
        return next((text for job, text in self.by_job.items() if pod.startswith(job)), None)


@contextmanager
def kubelet_logs(folder: Path) -> Iterator[Logs]:
    """Serves them, whole, to whoever asks; a follower's end comes with the end of what there is."""
    logs = Logs()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            place = self.path.partition("?")[0]
            names = place.removeprefix(WRITTEN).split("/")
            found = logs.of(names[1]) if place.startswith(WRITTEN) and len(names) == 3 else None
            self.send_response(200 if found is not None else 404)
            self.end_headers()
            self.wfile.write(found or b"")

        def log_message(self, format: str, *args: object) -> None:
            """Nobody reads it."""

    pair = Authority(folder, "kubelet").serving("kubelet")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
    server.daemon_threads = True
    server.socket = context.wrap_socket(server.socket, server_side=True)
    logs.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, name="logs of a kubelet")
    thread.start()
    try:
        yield logs
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def reach(api: Api, node: str, port: int) -> None:
    """Where the API server finds the kubelet of a node."""
    status = {
        "addresses": [{"type": "InternalIP", "address": LOOPBACK}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }
    api.merge(f"/api/v1/nodes/{node}/status", {"status": status})
