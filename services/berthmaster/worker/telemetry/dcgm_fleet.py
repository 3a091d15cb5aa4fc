"""The source "dcgm" for a whole cluster: every dcgm-exporter behind one name.

A headless Service resolves to an address per pod. The name is resolved every `LOOK_UP_S`. Each
address has its own connection, several are read at a time, within one time limit. An exporter
without an answer costs its own node's samples and is reported in `lacks` of another node. Only
without any answer the read fails. A name without an address is a cluster without exporters, which
is no fault.
"""

import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from berthmaster.lib.messages.telemetry import TelemetrySource
from berthmaster.worker.telemetry.core.source import NodeReading, SourceFailed
from berthmaster.worker.telemetry.dcgm import DcgmSource

LOOK_UP_S: Final = 30.0
AT_ONCE: Final = 8
MAX_EXPORTERS: Final = 1000
# DNS errors for a headless Service without pods; others are failures.
_NO_ADDRESS: Final = (socket.EAI_NONAME, socket.EAI_NODATA)
Resolve = Callable[[str, int], Sequence[str]]


def addresses(host: str, port: int) -> Sequence[str]:
    """All addresses of a name. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return sorted({str(address[0]) for *_, address in found})


class DcgmFleet:
    """All exporters of a cluster."""

    kind: TelemetrySource = "dcgm"

    def __init__(self, *, url: str, timeout_s: float, resolve: Resolve = addresses) -> None:
        self._url = url
        self._timeout_s = timeout_s
        self._resolve = resolve
        self._exporters: dict[str, DcgmSource] = {}
        self._look_up_at_s = float("-inf")
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="exporters")

    def read(self, now_s: float) -> Sequence[NodeReading]:
        """Return the nodes of all exporters that answer. Raises SourceFailed if none does."""
        if now_s >= self._look_up_at_s:
            self._look_up(now_s)
        deadline_s = time.monotonic() + self._timeout_s * 2
        reads = [
            (where, self._pool.submit(one.read, now_s)) for where, one in self._exporters.items()
        ]
        nodes: dict[str, NodeReading] = {}
        failed: list[str] = []
        for where, read in reads:
            try:
                for node in read.result(max(0.0, deadline_s - time.monotonic())):
                    nodes.setdefault(node.node, node)
            except SourceFailed as fault:
                failed.append(str(fault))
            except TimeoutError:
                read.cancel()
                failed.append(f"{where}: its turn did not come")
        if failed and not nodes:
            raise SourceFailed(failed[0])
        if failed:
            first = next(iter(nodes))
            lack = f"dcgm-exporters: {len(failed)} of {len(reads)} do not answer ({failed[0]})"
            nodes[first] = nodes[first]._replace(lacks=(*nodes[first].lacks, lack))
        return tuple(nodes.values())

    def _look_up(self, now_s: float) -> None:
        parts = urlsplit(self._url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            found = self._resolve(parts.hostname or "", port)[:MAX_EXPORTERS]
        except OSError as error:
            if not self._exporters:
                raise SourceFailed(f"{self._url}: {error}") from error
            if not (isinstance(error, socket.gaierror) and error.errno in _NO_ADDRESS):
                return  # the known ones continue
            found = ()
        self._look_up_at_s = now_s + LOOK_UP_S
        for gone in self._exporters.keys() - set(found):
            self._exporters.pop(gone).close()
        for where in found:
            if where not in self._exporters:
                host = f"[{where}]" if ":" in where else where
                url = urlunsplit(parts._replace(netloc=f"{host}:{port}"))
                self._exporters[where] = DcgmSource(url=url, node="", timeout_s=self._timeout_s)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        for one in self._exporters.values():
            one.close()
