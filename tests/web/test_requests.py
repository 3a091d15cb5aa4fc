"""Who may look and act, and what a hostile browser gets: a dashboard that knows people, by HTTP."""

import hashlib
import http.client
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from berthmaster.lib.access.keys import creds_file, make_keys
from berthmaster.lib.access.permissions import inbox_prefix
from berthmaster.lib.runtime.ports import free_ports
from tests.pipeline.running import Up
from tests.support.patience import hang_s, wait_until

ADA, BOB, EVE = "token-of-ada", "token-of-bob", "token-of-eve"


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


PEOPLE = {
    "people": [
        {"name": "ada", "role": "operator", "acts": True, "token_sha256": [digest(ADA)]},
        {"name": "bob", "role": "tenant", "tenants": ["default"], "acts": True,
         "token_sha256": [digest(BOB)]},
        {"name": "eve", "role": "tenant", "tenants": ["rival"], "token_sha256": [digest(EVE)]},
    ]
}  # fmt: skip


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: Any


class Site(NamedTuple):
    """A dashboard that runs."""

    port: int

    def ask(
        self, path: str, *, token: str = "", body: Any = None, headers: Mapping[str, str] = {}
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=hang_s())
        sent = {"Authorization": f"Bearer {token}"} if token else {}
        if body is not None:
            sent["Content-Type"] = "application/json"
        try:
            connection.request(
                "GET" if body is None else "POST",
                path,
                body if body is None or isinstance(body, bytes) else json.dumps(body),
                {**sent, **headers},
            )
            reply = connection.getresponse()
            data = reply.read()
        finally:
            connection.close()
        kind = reply.headers.get("Content-Type", "")
        told = json.loads(data) if kind == "application/json" else data.decode()
        return Answer(reply.status, dict(reply.headers), told)

    def first_event(self, token: str) -> dict[str, Any]:
        """All that a stream of changes begins with."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=hang_s())
        connection.request("GET", "/api/stream", headers={"Authorization": f"Bearer {token}"})
        reply = connection.getresponse()
        while not (line := reply.readline()).startswith(b"data: "):
            assert line
        connection.close()
        told: dict[str, Any] = json.loads(line[6:])
        return told


@contextmanager
def dashboard(up: Up, folder: Path, *flags: str) -> Iterator[Site]:
    [port] = free_ports(1)
    keys = up.folder / "keys"
    argv = [sys.executable, "-m", "berthmaster.cli.main", "serve", "dashboard"]
    argv += ["--nats-url", up.view["url"], "--inbox-prefix", inbox_prefix("dashboard")]
    argv += ["--nats-creds-file", str(creds_file(keys, "dashboard")), "--page-port", str(port)]
    log = (folder / "log").open("wb")
    process = subprocess.Popen([*argv, *flags], stdout=log, stderr=log)
    try:

        def listens() -> bool:
            assert process.poll() is None, (folder / "log").read_text()
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", port), 1).close()
                return True
            return False

        wait_until(listens, "the dashboard listens")
        yield Site(port)
    finally:
        process.terminate()
        assert process.wait(hang_s()) == 0
        log.close()


@pytest.fixture(scope="module")
def site(up: Up, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("people")
    (folder / "people.json").write_text(json.dumps(PEOPLE))
    keys = up.folder / "keys"
    make_keys(keys, ["steward"])
    flags = ["--people-file", str(folder / "people.json"), "--proxies", "127.0.0.1"]
    flags += ["--hands-dir", str(keys), "--most-connections", "400"]
    with dashboard(up, folder, *flags) as site:
        up.berth("submit", "--id", "mine", "--gpus", "1", "--model", "H100")
        wait_until(
            lambda: (
                site.ask("/api/jobs?q=mine", token=BOB).body["total"] == 1
                and {"fleet", "cluster/t4"} <= set(site.first_event(EVE)["documents"])
            ),
            "the page shows the job and the fleet",
            poll_s=0.1,
        )
        yield site


def test_a_tenant_sees_nothing_of_anothers(site: Site) -> None:
    assert site.ask("/api/jobs?q=mine", token=ADA).body["total"] == 1
    assert site.ask("/api/jobs?q=mine", token=EVE).body["rows"] == []
    assert site.ask("/api/jobs?tenant=default", token=EVE).body["total"] == 0
    assert site.ask("/api/job/default/mine", token=EVE).status == 404
    assert site.ask("/api/job/default/mine", token=BOB).body["why"]["state"] == "queued"
    trial = {"tenant": "default", "request": {"id": "x"}}
    assert site.ask("/api/try", token=EVE, body=trial).status == 403
    assert site.ask("/api/report", token=EVE, body={"tenant": "default"}).status == 403

    whole, own = site.first_event(ADA), site.first_event(EVE)
    assert {"jobs", "recent", "services"} <= set(whole["documents"])
    assert whole["gpus"]
    assert "gpus" not in own  # nodes tell who is on them
    told = json.dumps(own)
    assert "mine" not in told
    assert not [key for key in own["documents"] if key.startswith(("jobs", "recent", "layout"))]
    assert {"fleet", "cluster/t4"} <= set(own["documents"])
    node = next(iter(whole["documents"]["layout/t4"]["nodes"]))[0]
    assert site.ask(f"/api/node/t4/{node}", token=ADA).status == 200
    assert site.ask(f"/api/node/t4/{node}", token=EVE).status == 404


def test_people_act_with_their_own_rights_and_by_the_page_alone(site: Site, up: Up) -> None:
    cordon = {"verb": "cordon", "cluster": "a10", "reason": "firmware"}
    assert site.ask("/api/act", token=BOB, body=cordon).status == 403
    assert (
        site.ask(
            "/api/act", token=EVE, body={"verb": "cancel", "tenant": "default", "id": "mine"}
        ).status
        == 403
    )
    elsewhere = {"Origin": "https://evil.example.org", "Sec-Fetch-Site": "cross-site"}
    assert site.ask("/api/act", token=ADA, body=cordon, headers=elsewhere).status == 403
    assert site.ask("/api/act", token=ADA, body=cordon).body["type"] == "api.done.v1"
    [row] = [row for row in up.json("top", "--once") if row["cluster"] == "a10"]
    assert row["cordoned"] == "firmware (by ada on the page)"
    assert site.ask("/api/act", token=ADA, body=cordon | {"verb": "uncordon"}).status == 200
    first = {"verb": "reprioritize", "tenant": "default", "id": "mine", "priority": 7}
    assert site.ask("/api/act", token=BOB, body=first).body["type"] == "api.changed.v1"
    assert up.json("job", "mine")["workload"]["priority"] == 7
    wrong = site.ask("/api/act", token=ADA, body={"verb": "wipe", "cluster": "a10"})
    assert (wrong.status, "verb" in wrong.body["error"]) == (400, True)
    for text in (b'{"verb":"cordon","cluster":"\xff"}', b'{"x":' + b"[" * 5_000):
        assert site.ask("/api/act", token=ADA, body=text).status == 400


def test_people_hold_evict_and_drain_on_the_page(site: Site, up: Up) -> None:
    def act(token: str, **body: Any) -> Answer:
        return site.ask("/api/act", token=token, body=body)

    def held() -> dict[str, bool]:
        rows = site.ask("/api/jobs?q=mine", token=BOB).body["rows"]
        return {row["id"]: row["held"] for row in rows}

    def until(told: Callable[[], Any], wanted: Any) -> None:
        wait_until(lambda: told() == wanted, f"it is {wanted}", poll_s=0.05)

    mine = {"tenant": "default", "id": "mine"}
    assert act(EVE, verb="hold", **mine).status == 403
    assert act(BOB, verb="hold", reason="not yet", **mine).body["type"] == "api.changed.v1"
    until(held, {"mine": True})
    assert "held by tenant default" in up.json("why", "mine")["summary"]
    assert act(BOB, verb="release", **mine).status == 200
    until(held, {"mine": False})
    assert act(ADA, verb="hold", **mine).status == 200  # an operator's, which Bob does not release
    assert "held by operator ada" in up.json("why", "mine")["summary"]
    assert act(BOB, verb="release", **mine).body["code"] == "forbidden"
    assert act(ADA, verb="release", **mine).body["type"] == "api.changed.v1"
    waits = act(BOB, verb="evict", **mine).body
    assert (waits["type"], waits["code"]) == ("api.refusal.v1", "conflict")

    place = {"cluster": "a10"}
    assert act(BOB, verb="drain", **place).status == 403
    past = act(ADA, verb="drain", by_s=1.0, **place).body
    assert (past["type"], past["field"]) == ("api.refusal.v1", "by_s")
    assert act(ADA, verb="drain", by_s=time.time() + 7200, **place).body["type"] == "api.done.v1"
    draining = lambda: site.first_event(ADA)["documents"]["cluster/a10"]["draining"]  # noqa: E731
    until(draining, True)
    [cordon] = up.json("problems", "cordons")["cordons"]
    assert (cordon["cluster"], cordon["drain"]) == ("a10", True)
    assert act(ADA, verb="uncordon", **place).status == 200
    until(draining, False)
    up.berth("submit", "--id", "goes", "--gpus", "1", "--duration", "30h")
    up.until("goes", state="running")
    assert act(ADA, verb="evict", **mine | {"id": "goes"}).body["type"] == "api.changed.v1"
    until(lambda: up.json("job", "goes")["workload"]["attempt"], 2)
    up.berth("cancel", "goes")


def test_a_name_counts_only_from_a_proxy_and_wrong_tokens_wait(site: Site) -> None:
    assert site.ask("/api/me").status == 401
    assert site.ask("/api/me", headers={"X-Forwarded-User": "ada"}).body["role"] == "operator"
    assert site.ask("/api/me", headers={"X-Forwarded-User": "mallory"}).status == 401
    far = {"X-Forwarded-For": "192.0.2.7"}
    found = [site.ask("/api/me", token=f"guess-{n}", headers=far).status for n in range(12)]
    assert (found[0], found[-1]) == (401, 429)
    refused = site.ask(
        "/api/me", token=ADA, headers=far
    )  # not even with the right one, for a while
    assert refused.status == 429
    assert int(refused.headers["Retry-After"]) > 0
    assert site.ask("/api/me", token=ADA).status == 200  # nobody else waits
    came = site.ask("/api/login", body={"token": BOB})
    assert {"HttpOnly", "SameSite=Strict"} <= set(came.headers["Set-Cookie"].split("; "))
    assert site.ask("/api/login", body={"token": 7}).status == 400


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/nothing", 404),
        ("/api", 404),
        ("/api/nothing", 404),
        ("/..%2f..%2fservice.py", 404),
        ("/js/../../core.py", 404),
        ("/api/jobs?state=flying", 400),
        ("/api/jobs?limit=1e9", 400),
        ("/api/jobs?sort=luck", 400),
        ("/api/job/default", 404),
        ("/api/node/t4/%00", 404),
    ],
)
def test_what_there_is_not_is_told_so(site: Site, path: str, status: int) -> None:
    answer = site.ask(path, token=ADA)
    assert answer.status == status
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_a_page_of_elsewhere_cannot_pretend_to_be_this_one(site: Site) -> None:
    assert site.ask("/api/me", token=ADA, headers={"Host": "evil.example.org"}).status == 421


def test_many_connections_and_one_that_never_reads_keep_nobody_else_waiting(site: Site) -> None:
    deaf = socket.create_connection(("127.0.0.1", site.port))
    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    head = f"GET /api/stream HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {ADA}\r\n\r\n"
    deaf.sendall(head.encode())
    crowd: list[socket.socket] = []
    try:
        for _ in range(1_000):
            try:
                crowd.append(socket.create_connection(("127.0.0.1", site.port), 5))
            except OSError:
                break
        # Beyond the bound they are closed at once; whoever was in stays in.
        closed = 0
        for one in crowd[-100:]:
            one.settimeout(5)
            try:
                closed += one.recv(1) == b""
            except ConnectionError:
                closed += 1
        assert closed == 100
    finally:
        for one in crowd:
            one.close()

    def answers() -> bool:
        with suppress(OSError, http.client.HTTPException):
            return site.ask("/api/me", token=ADA).status == 200
        return False

    wait_until(answers, "the page answers again", poll_s=0.1)
    deaf.close()


def test_it_does_not_listen_to_everybody_unless_it_is_told_who_may_look(
    up: Up, tmp_path: Path
) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "berthmaster.cli.main",
            "serve",
            "dashboard",
            "--page-host",
            "0.0.0.0",
        ],
        capture_output=True,
        text=True,
        timeout=hang_s(),
        check=False,
    )
    assert done.returncode not in (0, 1)
    assert "--people-file" in done.stdout + done.stderr
