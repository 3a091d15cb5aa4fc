"""Attach a document to a pushed image: an OCI referrer, as registry clients list it.

Example: `attach("registry.example/berth/gateway", "sha256:5f0c…", CYCLONEDX, b"{…}")` stores the
document as a blob, and a manifest of this artifact type whose `subject` is the image. The image and
its digest stay as they are. A registry that does not list referrers itself gets the tag
`sha256-5f0c…` with the list, as the OCI distribution specification says.

Credentials are those of `docker login`. Plain HTTP is spoken to loopback only, as Docker does.
"""

import base64
import hashlib
import json
import os
import re
import ssl
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

CYCLONEDX: Final = "application/vnd.cyclonedx+json"
OCI_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX: Final = "application/vnd.oci.image.index.v1+json"
MANIFESTS: Final = (
    OCI_MANIFEST,
    OCI_INDEX,
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
EMPTY: Final = b"{}"
EMPTY_TYPE: Final = "application/vnd.oci.empty.v1+json"
DOCKER_HUB: Final = "docker.io"
LOOPBACK: Final = re.compile(r"(localhost|127\.[0-9.]+)(:[0-9]+)?")
LIMIT_S: Final = 60
CALL_LIMIT_S: Final = 30  # of a credential helper


class RegistryError(Exception):
    """A registry refused; the text names the request and the answer."""


class Reply(NamedTuple):
    """An answer with status 2xx."""

    body: bytes
    headers: Mapping[str, str]


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def descriptor(media_type: str, content: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": digest_of(content), "size": len(content)}


def attach(name: str, digest: str, artifact_type: str, document: bytes) -> str:
    """Attach a document to the image NAME@DIGEST; the digest of the referrer. Raises
    RegistryError."""
    repository = _Repository(name)
    found = repository.call("GET", f"manifests/{digest}", accept=", ".join(MANIFESTS))
    subject = descriptor(found.headers["Content-Type"], found.body) | {"digest": digest}
    for content in (EMPTY, document):
        repository.store_blob(content)
    manifest = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "artifactType": artifact_type,
        "config": descriptor(EMPTY_TYPE, EMPTY),
        "layers": [descriptor(artifact_type, document)],
        "subject": subject,
    }
    content = json.dumps(manifest).encode()
    referrer = descriptor(OCI_MANIFEST, content)
    path = f"manifests/{referrer['digest']}"
    stored = repository.call("PUT", path, content, content_type=OCI_MANIFEST)
    if "OCI-Subject" not in stored.headers:
        repository.list_referrer(digest, referrer | {"artifactType": artifact_type})
    return str(referrer["digest"])


class _Repository:
    """A repository of a registry, and the token for it."""

    def __init__(self, name: str) -> None:
        host, _, self.path = name.partition("/")
        if not self.path or not re.search(r"[.:]|^localhost$", host):  # as docker reads a name
            host, self.path = DOCKER_HUB, name
        self.host = host
        scheme = "http" if LOOPBACK.fullmatch(host) else "https"
        server = "registry-1.docker.io" if host == DOCKER_HUB else host
        self.root = f"{scheme}://{server}/v2/{self.path}/"
        ca = Path("/etc/docker/certs.d") / host / "ca.crt"
        self._tls = ssl.create_default_context(cafile=ca if ca.is_file() else None)
        self._authorization = ""

    def store_blob(self, content: bytes) -> None:
        """Store a blob under its digest."""
        begun = self.call("POST", "blobs/uploads/", b"")
        target = urllib.parse.urljoin(self.root, begun.headers["Location"])
        joint = "&" if "?" in target else "?"
        where = f"{target}{joint}digest={urllib.parse.quote(digest_of(content), safe='')}"
        self.call("PUT", where, content, content_type="application/octet-stream")

    def list_referrer(self, digest: str, referrer: Mapping[str, Any]) -> None:
        """Add a referrer to the tag that lists those of a digest."""
        path = f"manifests/{digest.replace(':', '-')}"
        try:
            listed = json.loads(self.call("GET", path, accept=OCI_INDEX).body)["manifests"]
        except _NotFoundError:
            listed = []
        others = [each for each in listed if each["digest"] != referrer["digest"]]
        index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [*others, referrer]}
        self.call("PUT", path, json.dumps(index).encode(), content_type=OCI_INDEX)

    def call(
        self, method: str, path: str, body: bytes | None = None, accept: str = "*/*",
        content_type: str = "",
    ) -> Reply:  # fmt: skip
        """Send one request, and log in where the registry asks for that."""
        url = urllib.parse.urljoin(self.root, path)
        headers = {"Accept": accept} | ({"Content-Type": content_type} if content_type else {})
        # An upload may lead to another server, which gets no credentials.
        is_own = urllib.parse.urlsplit(url).netloc == urllib.parse.urlsplit(self.root).netloc
        try:
            return self._send(method, url, body, headers, self._authorization if is_own else "")
        except _UnauthorizedError as error:
            if self._authorization or not is_own:
                raise
            self._authorization = self._log_in(error.challenge)
            return self._send(method, url, body, headers, self._authorization)

    def _send(
        self, method: str, url: str, body: bytes | None, headers: Mapping[str, str], login: str
    ) -> Reply:
        request = urllib.request.Request(url, body, dict(headers), method=method)
        if login:
            request.add_unredirected_header("Authorization", login)
        what = f"{method} {urllib.parse.urlsplit(url)._replace(query='').geturl()}"
        try:
            with urllib.request.urlopen(request, timeout=LIMIT_S, context=self._tls) as reply:
                return Reply(reply.read(), reply.headers)
        except urllib.error.HTTPError as error:
            with error:
                text = error.read(500).decode(errors="replace").strip()
            said = f"{what}: {error.code} {error.reason} {text}".strip()
            if error.code == 401:
                raise _UnauthorizedError(said, error.headers.get("WWW-Authenticate", "")) from None
            if error.code == 404:
                raise _NotFoundError(said) from None
            raise RegistryError(said) from None
        except OSError as error:
            raise RegistryError(f"{what}: {error}") from None

    def _log_in(self, challenge: str) -> str:
        """Return the header that this challenge asks for."""
        basic = credentials(self.host)
        kind, _, rest = challenge.partition(" ")
        if kind.lower() != "bearer":
            if not basic:
                raise RegistryError(f"{self.host} wants a login: docker login {self.host}")
            return f"Basic {basic}"
        asked = dict(re.findall(r'(\w+)="([^"]*)"', rest))
        query = {"scope": f"repository:{self.path}:pull,push"}
        query |= {"service": asked["service"]} if "service" in asked else {}
        url = f"{asked.get('realm', '')}?{urllib.parse.urlencode(query)}"
        if not url.startswith("https://") and not LOOPBACK.match(url.removeprefix("http://")):
            raise RegistryError(f"{self.host}: no token is fetched from {asked.get('realm', '')!r}")
        login = f"Basic {basic}" if basic else ""
        answer = json.loads(self._send("GET", url, None, {}, login).body)
        return f"Bearer {answer.get('token') or answer.get('access_token', '')}"


class _UnauthorizedError(RegistryError):
    def __init__(self, text: str, challenge: str) -> None:
        super().__init__(text)
        self.challenge = challenge


class _NotFoundError(RegistryError):
    pass


def credentials(host: str) -> str:
    """Return user and password of `docker login`, in base64; "" = none."""
    folder = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    try:
        config = json.loads((folder / "config.json").read_text())
    except FileNotFoundError:
        return ""
    server = "https://index.docker.io/v1/" if host == DOCKER_HUB else host
    helper = config.get("credHelpers", {}).get(host) or config.get("credsStore")
    if not helper:
        return str(config.get("auths", {}).get(server, {}).get("auth", ""))
    try:
        done = subprocess.run(
            [f"docker-credential-{helper}", "get"],
            input=server,
            capture_output=True,
            text=True,
            timeout=CALL_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RegistryError(f"docker-credential-{helper}: {error}") from error
    if done.returncode:
        return ""
    found = json.loads(done.stdout)
    return base64.b64encode(f"{found['Username']}:{found['Secret']}".encode()).decode()
