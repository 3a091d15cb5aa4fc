"""What `keys` writes into the Secrets of an installed hub, and what it says when it cannot."""

import base64
import datetime as dt
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from berthmaster.lib.access.certificates import SERVER_LIFE, CertificatesError, ensure_certificates
from berthmaster.lib.access.keys import remove_user, sign_user
from berthmaster.lib.kueue.names import CLEARING_CONFIGURATION
from berthmaster.lib.supervisor.hub_folder import (
    BUS_SECRET,
    CLEARING_SECRET,
    KEYS_SECRET,
    SIGNERS_SECRET,
    parts,
    prepare,
    renew_certificates,
)
from berthmaster.lib.supervisor.hub_keys import (
    ApiServer,
    Publisher,
    PublishFailed,
)
from tests.support.containers import write_token
from tests.unit.lib.kube.papers import Authority, serving

URL = "tls://berth-nats.ns.svc:4222"
NAMES = ("berth-nats.ns.svc", "*.berth-nats-peers.ns.svc")


@contextmanager
def api_server(folder: Path, status: int) -> Iterator[tuple[ApiServer, list[Any]]]:
    """One that answers each request so, and what it got."""
    got: list[Any] = []

    class Answer(BaseHTTPRequestHandler):
        def do_PATCH(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            got.append((self.path, self.headers["Authorization"], body))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    authority = Authority()
    server = HTTPServer(("127.0.0.1", 0), Answer)
    server.socket = serving(folder, authority, "127.0.0.1").wrap_socket(
        server.socket, server_side=True
    )
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        token = write_token(folder / "token", "s3cret", authority.pem, "ns")
        yield ApiServer(f"https://127.0.0.1:{server.server_port}", token), got
    finally:
        server.shutdown()
        server.server_close()


def test_secret_is_applied_whole_under_its_name(tmp_path: Path) -> None:
    with api_server(tmp_path, 200) as (server, got):
        server.write("berth-bus", {"tls.key": b"KEY"})
    [(path, authorization, body)] = got
    assert path.startswith("/api/v1/namespaces/ns/secrets/berth-bus?fieldManager=")
    assert authorization == "Bearer s3cret"
    assert body["data"] == {"tls.key": base64.b64encode(b"KEY").decode()}


@pytest.mark.parametrize(
    ("status", "why"),
    [
        (403, "Secret berth-bus: 403 Forbidden"),
        (404, "Secret berth-bus: 404 Not Found; the chart makes the object: helm upgrade"),
    ],
)
def test_refusal_names_the_secret_and_shows_nothing_of_it(
    tmp_path: Path, status: int, why: str
) -> None:
    with api_server(tmp_path, status) as (server, _), pytest.raises(PublishFailed) as refused:
        server.write("berth-bus", {"tls.key": b"KEY"})
    assert str(refused.value) == why


def test_api_server_that_is_away_is_told(tmp_path: Path) -> None:
    token = write_token(tmp_path, "s3cret", Authority().pem, "ns")
    with pytest.raises(PublishFailed, match=r"Secret x: .*refused"):
        ApiServer("https://127.0.0.1:1", token).write("x", {})


def test_only_what_differs_is_written_and_all_of_it_after_ten_minutes() -> None:
    written: list[str] = []

    def write(name: str, _: Mapping[str, bytes]) -> None:
        written.append(name)

    publisher = Publisher(write)
    assert publisher.compare({"a": {"x": b"1"}, "b": {}}, 0) == ["a", "b"]
    assert publisher.compare({"a": {"x": b"1"}, "b": {}}, 10) == []
    assert publisher.compare({"a": {"x": b"2"}, "b": {}}, 20) == ["a"]
    assert publisher.compare({"a": {"x": b"2"}, "b": {}}, 601) == ["a", "b"]
    assert written == ["a", "b", "a", "a", "b"]


def test_secret_that_was_refused_is_tried_again() -> None:
    refused = [True]

    def write(name: str, _: Mapping[str, bytes]) -> None:
        if refused.pop() if refused else False:
            raise PublishFailed(name)

    publisher = Publisher(write)
    with pytest.raises(PublishFailed):
        publisher.compare({"a": {}}, 0)
    assert publisher.compare({"a": {}}, 1) == ["a"]


def test_new_tenant_and_cluster_reach_the_secrets_and_removed_ones_leave_them(
    tmp_path: Path,
) -> None:
    prepare(tmp_path, url=URL, names=NAMES, login=True)
    before = parts(tmp_path, "own")
    assert {"login.creds", "gateway.creds", "setup.creds"} <= before[KEYS_SECRET].keys()
    assert not [name for name in before[KEYS_SECRET] if name.startswith("tenant")]
    sign_user(tmp_path / "keys", "tenant.acme", days=1)
    after = parts(tmp_path, "own")
    assert after[KEYS_SECRET] == before[KEYS_SECRET]
    assert after[SIGNERS_SECRET].keys() - before[SIGNERS_SECRET].keys() == {"T_acme.json"}
    assert after[BUS_SECRET]["accounts.conf"] != before[BUS_SECRET]["accounts.conf"]
    remove_user(tmp_path / "keys", "tenant.acme")
    assert parts(tmp_path, "own")[SIGNERS_SECRET].keys() == before[SIGNERS_SECRET].keys()


def test_certificate_names_all_servers_and_is_renewed_in_time(tmp_path: Path) -> None:
    prepare(tmp_path, url=URL, names=NAMES, external=["hub.example.com"])
    made = parts(tmp_path, "own")[BUS_SECRET]["tls.crt"]
    held = x509.load_pem_x509_certificate(made)
    names = held.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {"hub.example.com", *NAMES} <= set(names.get_values_for_type(x509.DNSName))
    wanted = ["hub.example.com", *NAMES]
    renew_certificates(tmp_path, wanted, "own", "")
    assert parts(tmp_path, "own")[BUS_SECRET]["tls.crt"] == made
    late_s = (held.not_valid_before_utc + SERVER_LIFE * 0.7).timestamp()
    assert late_s > dt.datetime.now(dt.UTC).timestamp()
    ensure_certificates(tmp_path / "tls", wanted, now_s=late_s)
    assert parts(tmp_path, "own")[BUS_SECRET]["tls.crt"] != made


def test_webhook_gets_its_own_certificate_and_the_hubs_authority(tmp_path: Path) -> None:
    prepare(tmp_path, url=URL, names=NAMES, clearing="berth-clearing.ns.svc")
    made = parts(tmp_path, "own", "berth-clearing.ns.svc")
    assert CLEARING_SECRET not in parts(tmp_path, "own")
    pair = made[CLEARING_SECRET]
    assert pair.keys() == {"tls.crt", "tls.key"}
    assert pair["tls.key"] != made[BUS_SECRET]["tls.key"]
    held = x509.load_pem_x509_certificate(pair["tls.crt"])
    held.verify_directly_issued_by(x509.load_pem_x509_certificate(made[BUS_SECRET]["ca.crt"]))
    names = held.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "berth-clearing.ns.svc" in names.get_values_for_type(x509.DNSName)
    api = tmp_path / "api"
    api.mkdir()
    with api_server(api, 200) as (server, got):
        server.write(CLEARING_CONFIGURATION, {"ca.crt": b"PEM"})
    [(path, _, body)] = got
    kinds = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    assert path.startswith(f"{kinds}/berthmaster-clearing?fieldManager=")
    bundle = base64.b64encode(b"PEM").decode()
    hook = {"name": "clearing.berthmaster.io", "clientConfig": {"caBundle": bundle}}
    assert body["webhooks"] == [hook]


def test_certificate_of_cert_manager_is_waited_for_and_not_published(tmp_path: Path) -> None:
    with pytest.raises(CertificatesError, match=r"tls/ca\.crt is missing: cert-manager's Secret"):
        prepare(tmp_path, url=URL, names=NAMES, certificates="given")
    tls = tmp_path / "tls"
    tls.mkdir()
    for name in ("ca.crt", "server.crt"):
        (tls / name).write_text("PEM")
    prepare(tmp_path, url=URL, names=NAMES, certificates="given")
    made = parts(tmp_path, "given")
    assert made[BUS_SECRET].keys() == {"accounts.conf"}
    assert "ca.crt" not in made[KEYS_SECRET]
    assert not (tls / "ca.key").exists()
