"""A document attached to an image of a registry that wants a login, and of one that refuses."""

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import pytest

from scripts.registry import CYCLONEDX, OCI_INDEX, RegistryError, attach, digest_of

LOGIN: Final = base64.b64encode(b"ada:secret").decode()
IMAGE: Final = b'{"schemaVersion": 2}'
TYPE: Final = "application/vnd.docker.distribution.manifest.v2+json"


class Registry(ThreadingHTTPServer):
    """One image, behind tokens that ada gets."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.host = f"127.0.0.1:{self.server_port}"
        self.stored: dict[str, tuple[str, bytes]] = {f"manifests/{digest_of(IMAGE)}": (TYPE, IMAGE)}
        self.lists_referrers = False
        self.refuses = ""  # a method


class _Handler(BaseHTTPRequestHandler):
    server: Registry

    def _do(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path, _, query = self.path.partition("?")
        login = self.headers.get("Authorization")
        if path == "/token":
            known = login == f"Basic {LOGIN}" and "scope=repository%3Aberth%2Fgateway" in query
            self._answer(200 if known else 401, b'{"token": "t"}')
        elif login != "Bearer t":
            realm = f'Bearer realm="http://{self.server.host}/token",service="r"'
            self._answer(401, b"", {"WWW-Authenticate": realm})
        elif self.command == self.server.refuses:
            self._answer(403, b'{"errors": [{"code": "DENIED"}]}')
        else:
            self._repository(path.removeprefix("/v2/berth/gateway/"), query, body)

    do_GET = do_PUT = do_POST = _do  # noqa: N815 # names of the base class

    def _repository(self, path: str, query: str, body: bytes) -> None:
        if self.command == "POST":
            self._answer(202, b"", {"Location": "/v2/berth/gateway/uploads/1?state=x"})
        elif self.command == "PUT":
            if path.startswith("uploads/"):
                path = f"blobs/{query.rpartition('digest=')[2].replace('%3A', ':')}"
            self.server.stored[path] = (self.headers["Content-Type"], body)
            self._answer(201, b"", {"OCI-Subject": "x"} if self.server.lists_referrers else {})
        elif path in self.server.stored:
            kind, content = self.server.stored[path]
            self._answer(200, content, {"Content-Type": kind})
        else:
            self._answer(404, b"")

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    with Registry() as server:
        config = {"auths": {server.host: {"auth": LOGIN}}}
        (tmp_path / "config.json").write_text(json.dumps(config))
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def attached(server: Registry, document: bytes = b"{}") -> str:
    return attach(f"{server.host}/berth/gateway", digest_of(IMAGE), CYCLONEDX, document)


@pytest.mark.parametrize("lists_referrers", [True, False])
def test_document_is_attached_with_the_login_of_docker(
    registry: Registry, lists_referrers: bool
) -> None:
    registry.lists_referrers = lists_referrers
    document = b'{"bomFormat": "CycloneDX"}'
    referrer = attached(registry, document)
    assert attached(registry, document) == referrer
    manifest = json.loads(registry.stored[f"manifests/{referrer}"][1])
    image = {"mediaType": TYPE, "digest": digest_of(IMAGE), "size": len(IMAGE)}
    assert (manifest["subject"], manifest["artifactType"]) == (image, CYCLONEDX)
    [layer] = manifest["layers"]
    assert registry.stored[f"blobs/{layer['digest']}"][1] == document
    tag = registry.stored.get(f"manifests/{digest_of(IMAGE).replace(':', '-')}")
    if lists_referrers:
        assert tag is None
    else:
        assert tag is not None
        assert tag[0] == OCI_INDEX
        [listed] = json.loads(tag[1])["manifests"]
        assert (listed["digest"], listed["artifactType"]) == (referrer, CYCLONEDX)


def test_registry_that_refuses_is_named_without_the_login(
    registry: Registry, tmp_path: Path
) -> None:
    registry.refuses = "POST"
    with pytest.raises(RegistryError) as refused:
        attached(registry)
    assert str(refused.value) == (
        f"POST http://{registry.host}/v2/berth/gateway/blobs/uploads/: 403 Forbidden "
        '{"errors": [{"code": "DENIED"}]}'
    )
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(RegistryError, match="/token: 401 Unauthorized"):
        attached(registry)
