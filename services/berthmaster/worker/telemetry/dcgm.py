"""The source "dcgm": scrape a dcgm-exporter on a node that already runs one.

The page is fetched over one open connection, within limits of time and size, without proxies. Only
lines of used fields are parsed, and an unchanged page (exporters update every 30 s by default) is
not parsed again.

Samples are as old as the page, which has no time. An unreadable line is skipped, counted and named.
"""

import http.client
import re
import ssl
import string
import time
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from berthmaster.lib.messages.telemetry import TelemetrySource
from berthmaster.worker.telemetry.core.dcgm_fields import WANTED, DcgmReadings, Parsed, Series
from berthmaster.worker.telemetry.core.plausible import MAX_INDEX
from berthmaster.worker.telemetry.core.source import NodeReading, SourceFailed

MAX_BYTES: Final = 8 * 1024 * 1024  # 1,000 GPUs with all fields; one node of eight needs 50 KB
MAX_HEADS: Final = 50_000  # limit of cached series, since names of pods change
_CHUNK_BYTES: Final = 64 * 1024
MAX_NAMED: Final = 256  # unreadable lines kept to match GPUs
MAX_LINE_CHARS: Final = 1000  # of such a line
_INDEX: Final = re.compile(r"[0-9]{1,6}")
_FIRST_OF_LINES: Final = frozenset(string.ascii_letters + "_:#\r")
_WANTED_LINES: Final = tuple(f"{name}{{" for name in sorted(WANTED))


class DcgmSource:
    kind: TelemetrySource = "dcgm"

    def __init__(
        self, *, url: str, node: str, timeout_s: float, max_bytes: int = MAX_BYTES
    ) -> None:
        self._page = MetricsPage(url, timeout_s, max_bytes)
        self._readings = DcgmReadings(node)
        self._parser = Parser()
        self._body = b""
        self._nodes: tuple[NodeReading, ...] = ()

    def read(self, now_s: float) -> tuple[NodeReading, ...]:
        """One scrape. Raises SourceFailed."""
        body = self._page.fetch()
        if body != self._body:
            try:
                nodes = self._readings.take(self._parser.parse(body), now_s)
            except SourceFailed as fault:
                raise SourceFailed(f"{self._page.url}: {fault}") from fault
            self._body = body
            # Lines of an unchanged page are skipped once, but their values are still missing.
            self._nodes = tuple(node._replace(lines_skipped=0) for node in nodes)
            return nodes
        return self._nodes

    def close(self) -> None:
        self._page.close()


class Parser:
    """Parses pages. The text before each value is parsed once and cached, because this is by far
    the slowest part and series repeat.
    """

    def __init__(self, max_heads: int = MAX_HEADS) -> None:
        self._max_heads = max_heads
        self._heads: dict[str, tuple[str, Mapping[str, str]]] = {}

    def parse(self, body: bytes) -> Parsed:
        """Return the used series and the unreadable lines. Never raises."""
        if len(self._heads) > self._max_heads:
            self._heads.clear()
        *lines, rest = body.decode(errors="replace").split("\n")
        series: list[Series] = []
        skipped = 0
        named: list[str] = []
        for line in lines:
            if line.startswith(_WANTED_LINES):
                try:
                    series.append(self._series(line))
                    continue
                except (ValueError, IndexError, KeyError, AttributeError):
                    pass
            elif not line or line[0] in _FIRST_OF_LINES:
                continue
            skipped += 1
            if len(named) < MAX_NAMED:
                named.append(line[:MAX_LINE_CHARS])
        # The last line may be incomplete.
        return Parsed(series, skipped + bool(rest), tuple(named), cut_short=bool(rest))

    def _series(self, line: str) -> Series:
        end = line.rindex("}") + 1
        head = line[:end]
        known = self._heads.get(head)
        if known is None:
            known = self._heads[head] = _parse_head(line)
        value, *_time_stamp = line[end:].split()
        return Series(*known, float(value))


def _parse_head(line: str) -> tuple[str, Mapping[str, str]]:
    (family,) = text_string_to_metric_families(f"{line}\n")
    (sample,) = family.samples
    index = sample.labels.get("gpu")
    if index is not None and (not _INDEX.fullmatch(index) or int(index) > MAX_INDEX):
        raise ValueError(f"gpu {index[:32]!r} is no index of a GPU")
    return sample.name, sample.labels


class MetricsPage:
    """A page to fetch repeatedly."""

    def __init__(self, url: str, timeout_s: float, max_bytes: int) -> None:
        self.url = url
        parts = urlsplit(url)
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._connection: http.client.HTTPConnection | None = None

    def fetch(self) -> bytes:
        """The page's body. Raises SourceFailed."""
        deadline_s = time.monotonic() + self._timeout_s
        kept = self._connection is not None
        try:
            try:
                return self._get(deadline_s)
            except (http.client.HTTPException, ConnectionError):
                self.close()
                if not kept:  # the server may close a kept connection at any time
                    raise
                return self._get(deadline_s)
        except TimeoutError as error:
            self.close()
            raise SourceFailed(f"{self.url}: no page within {self._timeout_s:g} s") from error
        except (http.client.HTTPException, OSError, ValueError) as error:
            self.close()
            raise SourceFailed(f"{self.url}: {str(error) or type(error).__name__}") from error
        except SourceFailed:
            self.close()
            raise

    def close(self) -> None:
        """Hang up; the next fetch connects anew."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _get(self, deadline_s: float) -> bytes:
        connection = self._connection
        if connection is None:
            connection = self._connection = self._connect(deadline_s)
        self._limit(connection, deadline_s)
        connection.request("GET", self._path, headers={"Accept": "text/plain;version=0.0.4"})
        response = connection.getresponse()
        if response.status != 200:
            raise SourceFailed(f"{self.url} answers {response.status} {response.reason}")
        chunks: list[bytes] = []
        size = 0
        while True:
            self._limit(connection, deadline_s)
            chunk = response.read1(_CHUNK_BYTES)
            if not chunk:
                break
            chunks.append(chunk)
            size += len(chunk)
            if size > self._max_bytes:
                raise SourceFailed(f"{self.url}: the page is larger than {self._max_bytes} bytes")
        if response.length:
            raise http.client.IncompleteRead(b"", response.length)
        response.close()  # read completely, so the connection can be reused
        return b"".join(chunks)

    def _connect(self, deadline_s: float) -> http.client.HTTPConnection:
        left_s = max(0.001, deadline_s - time.monotonic())
        if self._secure:
            return http.client.HTTPSConnection(
                self._host, self._port, timeout=left_s, context=ssl.create_default_context()
            )
        return http.client.HTTPConnection(self._host, self._port, timeout=left_s)

    @staticmethod
    def _limit(connection: http.client.HTTPConnection, deadline_s: float) -> None:
        """Set the timeout of the next operation to the remaining time."""
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        if connection.sock is not None:
            connection.sock.settimeout(left_s)
