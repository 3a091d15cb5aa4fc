"""Who is told at the end of a wait: by what request, how often, and what is never sent on."""

import hashlib
import hmac
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from berthmaster.cli.job import notifying
from berthmaster.cli.job.notifying import Ending, NotSent, notice_of, post, run_command
from berthmaster.lib.runtime.webhook import SIGNATURE, KeyWrong, read_key

NOTICE = notice_of(
    [
        Ending(tenant="ann", id="a", state="succeeded", cluster="berlin"),
        Ending(tenant="ann", id="b", state="failed", reason="exit code 1"),
    ],
    "failed",
)


class Receiver(ThreadingHTTPServer):
    """Answers as it is told, and remembers what it got."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.codes: list[int] = []
        self.got: list[tuple[str, dict[str, str], bytes]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/hook"


class Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((self.path, dict(self.headers), body))
        self.send_response(self.server.codes.pop(0) if self.server.codes else 204)
        self.send_header("Location", f"{self.server.url}/elsewhere")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Nothing on standard error."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join(5)


def test_the_body_says_what_became_of_all_and_is_signed(receiver: Receiver) -> None:
    post(receiver.url, NOTICE, b"a key")
    [(path, headers, body)] = receiver.got
    assert path == "/hook"
    assert json.loads(body) == {
        "outcome": "failed",
        "text": "a succeeded, b failed",
        "workloads": [
            {"tenant": "ann", "id": "a", "state": "succeeded", "cluster": "berlin"},
            {"tenant": "ann", "id": "b", "state": "failed", "reason": "exit code 1"},
        ],
    }
    signed = hmac.new(b"a key", body, hashlib.sha256).hexdigest()
    assert headers[SIGNATURE] == f"sha256={signed}"


def test_who_is_busy_is_asked_again_and_who_refuses_is_not(receiver: Receiver) -> None:
    pauses: list[float] = []
    receiver.codes = [503, 429]
    post(receiver.url, NOTICE, sleep=pauses.append)
    assert (len(receiver.got), pauses) == (3, [1.0, 2.0])
    assert SIGNATURE not in receiver.got[0][1]

    for codes, calls, why in (([400], 1, "400"), ([503] * 9, 4, "503"), ([302], 1, "302")):
        receiver.got.clear()
        receiver.codes = list(codes)
        with pytest.raises(NotSent, match=f"it answers {why}"):
            post(receiver.url, NOTICE, b"a key", sleep=pauses.append)
        assert [path for path, _, _ in receiver.got] == ["/hook"] * calls  # followed nowhere


def test_a_place_where_nobody_listens_is_given_up(receiver: Receiver) -> None:
    url = receiver.url
    receiver.server_close()
    pauses: list[float] = []
    with pytest.raises(NotSent, match="refused"):
        post(url, NOTICE, sleep=pauses.append)
    assert pauses == [1.0, 2.0, 4.0]


def test_a_command_is_told_in_its_environment_and_on_its_standard_input(tmp_path: Path) -> None:
    into = tmp_path / "told"
    command = (
        f'cat > {into}; echo "$BERTH_OUTCOME|$BERTH_WORKLOADS|$BERTH_STATES" >> {into}; exit 3'
    )
    assert run_command(command, NOTICE) == 3
    body, _, rest = into.read_text().rpartition("}")
    assert json.loads(body + "}")["outcome"] == "failed"
    assert rest == "failed|a b|succeeded failed\n"


@pytest.mark.parametrize("url", ["hooks.example", "file:///etc/passwd", "http://", "http://[x"])
def test_what_is_no_address_is_said_before_anything_is_waited_for(url: str) -> None:
    assert "https://hooks.example/berth" in notifying.url_fault(url)
    assert notifying.url_fault("https://hooks.example:8443/x?y=1") == ""


def test_a_key_is_read_from_its_file_and_an_empty_one_refused(tmp_path: Path) -> None:
    file = tmp_path / "key"
    with pytest.raises(KeyWrong, match="cannot read"):
        read_key(file)
    file.write_bytes(b"\n")
    with pytest.raises(KeyWrong, match="has 0 bytes"):
        read_key(file)
    file.write_bytes(b"secret\n")
    assert read_key(file) == b"secret"
