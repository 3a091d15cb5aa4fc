"""Ask the kubelet's socket for the devices of containers, in a thread of its own.

The API is gRPC on a Unix socket (``pod-resources/kubelet.sock``), one call without arguments. A
gRPC library would need more memory than the rest of the agent, which has 60 MiB. So the call uses
`h2`, plain HTTP/2, and lib/runtime/protobuf.py reads the answer. Each call has its own connection
and deadline. With a hung or restarted kubelet the last answer ages, and nothing else is delayed.

The socket belongs to root in a folder of root, so the agent runs as root, without capabilities.
"""

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import H2Error

from berthmaster.lib.runtime.protobuf import BadMessage
from berthmaster.worker.telemetry.core.pod_resources import Holders, given

LIST: Final = "/v1.PodResourcesLister/List"
CALL_LIMIT_S: Final = 3.0
EVERY_S: Final = 10.0  # devices change hands when pods start and end
OLD_S: Final = 60.0  # older answers are not believed any more
MAX_BYTES: Final = 16 * 1024 * 1024  # gRPC's own default is 4 MiB; 110 pods need some 50 KB
_CHUNK_BYTES: Final = 64 * 1024
_PREFIX_BYTES: Final = 5  # compression flag and size


class KubeletFault(Exception):
    """No answer that can be used; the text says why, for people."""


def call(path: Path, method: str, limit_s: float = CALL_LIMIT_S) -> bytes:
    """The answer to a call without arguments. Raises KubeletFault."""
    deadline_s = time.monotonic() + limit_s
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as wire:
            wire.settimeout(limit_s)
            wire.connect(str(path))
            return _Call(wire, deadline_s).made(method)
    except TimeoutError as error:
        raise KubeletFault(f"{path}: no answer within {limit_s:g} s") from error
    except FileNotFoundError as error:
        raise KubeletFault(f"{path}: there is no such socket") from error
    except (OSError, H2Error) as error:
        raise KubeletFault(f"{path}: {str(error) or type(error).__name__}") from error


class _Call:
    def __init__(self, wire: socket.socket, deadline_s: float) -> None:
        self._wire = wire
        self._deadline_s = deadline_s
        self._http = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        self._body = bytearray()
        self._status: str | None = None
        self._message = ""
        self._ended = False

    def made(self, method: str) -> bytes:
        http = self._http
        http.initiate_connection()
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", method),
            (":authority", "localhost"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("user-agent", "berthmaster-telemetry"),
        ]
        http.send_headers(1, headers)
        http.send_data(1, bytes(_PREFIX_BYTES), end_stream=True)  # a message without fields
        self._flush()
        while not self._ended:
            data = self._read()
            if not data:
                raise KubeletFault("the kubelet hung up in the middle of its answer")
            for event in http.receive_data(data):
                self._on(event)
            self._flush()
        return self._answer()

    def _on(self, event: Event) -> None:
        if isinstance(event, DataReceived):
            self._body += event.data
            if len(self._body) > MAX_BYTES:
                raise KubeletFault(f"the kubelet's answer is larger than {MAX_BYTES} bytes")
            self._http.acknowledge_received_data(event.flow_controlled_length, 1)
        elif isinstance(event, ResponseReceived | TrailersReceived):
            for name, raw in event.headers:
                value = raw.decode(errors="replace")
                if name == b"grpc-status":
                    self._status = value
                elif name == b"grpc-message":
                    self._message = value
                elif name == b":status" and value != "200":
                    raise KubeletFault(f"the kubelet answers HTTP {value[:8]}")
        elif isinstance(event, StreamEnded):
            self._ended = True
        elif isinstance(event, StreamReset | ConnectionTerminated):
            code = event.error_code
            why = code.name if isinstance(code, ErrorCodes) else str(code)
            raise KubeletFault(f"the kubelet ended the call: {why}")

    def _answer(self) -> bytes:
        if self._status != "0":
            what = f"gRPC status {self._status}" if self._status else "no gRPC status"
            raise KubeletFault(f"the kubelet answers {what} {self._message[:200]}".rstrip())
        size = int.from_bytes(self._body[1:_PREFIX_BYTES], "big")
        if len(self._body) != _PREFIX_BYTES + size or self._body[0]:
            raise KubeletFault("the kubelet's answer is not one whole message")
        return bytes(self._body[_PREFIX_BYTES:])

    def _flush(self) -> None:
        data = self._http.data_to_send()
        if data:
            self._limit()
            try:
                self._wire.sendall(data)
            except (BrokenPipeError, ConnectionResetError):
                pass  # the whole answer may be there all the same; else the next read says so

    def _read(self) -> bytes:
        self._limit()
        return self._wire.recv(_CHUNK_BYTES)

    def _limit(self) -> None:
        """Set the timeout of the next operation to the remaining time."""
        left_s = self._deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._wire.settimeout(left_s)


class KubeletWatch:
    """Keeps the last answer. Reading it never waits for the kubelet."""

    def __init__(
        self, path: Path, *, every_s: float = EVERY_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path = path
        self._every_s = every_s
        self._clock = clock
        self._known: tuple[float, Holders] | None = None
        self._why = f"{path}: not asked yet"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kubelet", daemon=True)

    def start(self) -> None:
        """Ask once within a call's limit, then continue in the background."""
        self.ask()
        self._thread.start()

    def close(self) -> None:
        """Stop asking. A running call ends within its limit."""
        self._stop.set()

    def holders(self) -> Holders | None:
        """Return the holders; None if unknown now."""
        known = self._known
        return known[1] if known and self._clock() - known[0] <= OLD_S else None

    @property
    def lacks(self) -> str:
        """Return why the holders are unknown; "" = known."""
        return "" if self.holders() is not None else f"who has which GPU: {self._why}"

    def ask(self) -> None:
        """Make one call. Never raises."""
        try:
            found = Holders(given(call(self._path, LIST)))
        except (KubeletFault, BadMessage) as fault:
            self._why = str(fault)
            return
        self._known, self._why = (self._clock(), found), ""

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            self.ask()
