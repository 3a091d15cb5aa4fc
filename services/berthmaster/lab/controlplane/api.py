"""A small blocking client of an API server for tests, independent of Berthmaster's own.

Tests prepare and check with this client, so it must not share the faults of the tested code. Hence
it is only HTTP and JSON. One `Api` is one identity, and is safe in any thread. The number of
connections is that of concurrent calls, not of threads.
"""

import base64
import contextlib
import http.client
import json
import ssl
import time
import urllib.parse
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from berthmaster.lab.controlplane.certificates import Pair
from berthmaster.lab.controlplane.patience import Patience

CALL_LIMIT_S: Final = 30.0
FIELD_MANAGER: Final = "berth-lab"
USER_AGENT: Final = "berth-lab"
_JSON: Final = "application/json"
_DISCOVERY: Final = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
_MERGE: Final = "application/merge-patch+json"
_APPLY: Final = "application/apply-patch+yaml"

Object = dict[str, Any]  # JSON of the API server


class ApiError(Exception):
    """An answer other than 2xx: its status, Kubernetes' reason and message, and its whole text."""

    def __init__(self, what: str, status: int, text: str) -> None:
        self.status = status
        self.reason, self.message = "", text
        try:
            answer = json.loads(text)
            self.reason, self.message = answer.get("reason", ""), answer.get("message", text)
        except (ValueError, AttributeError):
            pass
        super().__init__(f"{what}: {status} {self.reason}: {self.message}")


class Unreachable(Exception):
    """No answer: refused, interrupted or too late."""


class Api:
    """One API server and one identity: a client certificate, a token, or anonymous."""

    def __init__(
        self,
        url: str,
        ca: Path,
        pair: Pair | None = None,
        token: str = "",
        *,
        limit_s: float = CALL_LIMIT_S,
        user_agent: str = USER_AGENT,
    ) -> None:
        self.url = url
        self._host = url.removeprefix("https://")
        self._limit_s = limit_s
        self._headers = {"Accept": _JSON, "User-Agent": user_agent}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._tls = ssl.create_default_context(cafile=str(ca))
        if pair is not None:
            self._tls.load_cert_chain(pair.certificate, pair.key)
        self._idle: deque[http.client.HTTPSConnection] = deque()
        self._kinds: dict[tuple[str, str], tuple[str, bool]] = {}

    # ---- one call

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        content_type: str = _JSON,
        query: Mapping[str, object] | None = None,
        accept: str = _JSON,
    ) -> Object:
        """Send one request, and return the decoded answer. Raises ApiError and Unreachable."""
        if query:
            path = f"{path}?{urllib.parse.urlencode(query)}"
        data = None if body is None else json.dumps(body).encode()
        status, text = self._send(
            method, path, data, self._headers | {"Content-Type": content_type, "Accept": accept}
        )
        if status >= 300:
            raise ApiError(f"{method} {path}", status, text)
        answer = json.loads(text) if text.startswith("{") else {"text": text}
        assert isinstance(answer, dict)
        return answer

    def _send(
        self, method: str, path: str, data: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, str]:
        for fresh in (False, True):
            kept = self._kept()
            connection = kept or http.client.HTTPSConnection(
                self._host, timeout=self._limit_s, context=self._tls
            )
            try:
                connection.request(method, path, body=data, headers=dict(headers))
                reply = connection.getresponse()
                text = reply.read().decode()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                self.close()  # the others have been idle for longer
                # An idle connection may have died, so its failure says nothing about the server.
                if kept is None or fresh or isinstance(error, TimeoutError):
                    raise Unreachable(f"{method} {self.url}{path}: {error!r}") from error
                continue
            self._idle.append(connection)
            return reply.status, text
        raise AssertionError("unreachable")

    def _kept(self) -> http.client.HTTPSConnection | None:
        with contextlib.suppress(IndexError):
            return self._idle.pop()
        return None

    def close(self) -> None:
        """Close the idle connections."""
        while (connection := self._kept()) is not None:
            connection.close()

    # ---- verbs

    def get(self, path: str, **query: object) -> Object:
        return self.call("GET", path, query=query)

    def find(self, path: str) -> Object | None:
        """Return the object, or None if missing."""
        try:
            return self.get(path)
        except ApiError as error:
            if error.status == http.HTTPStatus.NOT_FOUND:
                return None
            raise

    def items(self, path: str, **query: object) -> list[Object]:
        """Return the items of a list."""
        found = self.get(path, **query)["items"]
        assert isinstance(found, list)
        return found

    def create(self, path: str, body: Mapping[str, Any], **query: object) -> Object:
        return self.call("POST", path, body, query=query)

    def replace(self, path: str, body: Mapping[str, Any]) -> Object:
        return self.call("PUT", path, body)

    def merge(self, path: str, body: Mapping[str, Any]) -> Object:
        """Patch an object with a JSON merge patch."""
        return self.call("PATCH", path, body, content_type=_MERGE)

    def delete(self, path: str, **query: object) -> Object:
        """Delete an object. By default, dependents are deleted in the background."""
        return self.call("DELETE", path, query={"propagationPolicy": "Background", **query})

    def apply(self, document: Mapping[str, Any], *, manager: str = FIELD_MANAGER) -> Object:
        """Apply a whole object on the server, at the path of its kind and metadata."""
        return self.call(
            "PATCH",
            self.path_of(document),
            document,
            content_type=_APPLY,
            query={"fieldManager": manager, "force": "true"},
        )

    def watch(self, path: str, limit_s: float = 10.0, **query: object) -> Iterator[Object]:
        """Yield events of a watch until its time limit or an interruption. Raises ApiError, late
        too."""
        wanted = {"watch": 1, "timeoutSeconds": max(1, int(limit_s)), **query}
        connection = http.client.HTTPSConnection(
            self._host, timeout=self._limit_s, context=self._tls
        )
        try:
            connection.request(
                "GET", f"{path}?{urllib.parse.urlencode(wanted)}", headers=self._headers
            )
            reply = connection.getresponse()
            if reply.status != http.HTTPStatus.OK:
                raise ApiError(f"watch {path}", reply.status, reply.read().decode())
            for line in reply:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    status = event["object"]
                    raise ApiError(f"watch {path}", status["code"], json.dumps(status))
                yield event
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"watch {self.url}{path}: {error!r}") from error
        finally:
            connection.close()

    # ---- paths

    def path_of(self, document: Mapping[str, Any]) -> str:
        """Return the path of an object, by its kind and name. Queries the server once per kind."""
        version, kind = str(document["apiVersion"]), str(document["kind"])
        root = f"/api/{version}" if "/" not in version else f"/apis/{version}"
        if (version, kind) not in self._kinds:
            for each in self.get(root)["resources"]:
                if "/" not in each["name"]:
                    self._kinds[version, each["kind"]] = (each["name"], each["namespaced"])
        if (version, kind) not in self._kinds:
            raise ApiError(f"GET {root}", http.HTTPStatus.NOT_FOUND, f"no kind {kind} in {version}")
        plural, namespaced = self._kinds[version, kind]
        metadata = document["metadata"]
        inside = f"/namespaces/{metadata['namespace']}" if namespaced else ""
        return f"{root}{inside}/{plural}/{metadata['name']}"


# Resource definitions are large. If available, libyaml parses them twenty times as fast.
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def documents(*sources: Path) -> list[Object]:
    """Return every document of YAML files and of folders with YAML files, sorted by name."""
    files: list[Path] = []
    for source in sources:
        files += sorted(source.glob("*.yaml")) if source.is_dir() else [source]
    found: list[Object] = []
    for file in files:
        for each in yaml.load_all(file.read_text(), Loader=_LOADER):
            found += each["items"] if each and each["kind"] == "List" else [each] if each else []
    return found


def kubeconfig(
    *, server: str, ca_pem: bytes, pair: Pair | None = None, token: str = "", name: str = "test"
) -> str:
    """Return a kubeconfig without references to files. JSON is valid YAML."""

    def encoded(data: bytes) -> str:
        return base64.b64encode(data).decode()

    user: Object = {"token": token} if token else {}
    if pair is not None:
        user["client-certificate-data"] = encoded(pair.certificate_pem)
        user["client-key-data"] = encoded(pair.key_pem)
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": name,
                    "cluster": {"server": server, "certificate-authority-data": encoded(ca_pem)},
                }
            ],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
            "current-context": name,
        },
        indent=1,
    )


def wait_served(api: Api, crds: Sequence[Mapping[str, Any]]) -> None:
    """Wait until every resource of these CustomResourceDefinitions is listable and discoverable.

    Discovery lags up to two seconds on a busy machine, one resource after the other. A Kueue that
    starts meanwhile exits without a second try. Raises Hung.
    """
    patience = Patience(f"{len(crds)} definitions are served")
    wanted = [
        (crd["spec"]["group"], version["name"], crd["spec"]["names"]["plural"])
        for crd in crds
        for version in crd["spec"]["versions"]
        if version["served"]
    ]
    left = wanted
    while True:
        try:
            while left:
                group, version, plural = left[0]
                api.get(f"/apis/{group}/{version}/{plural}", limit=1)
                left = left[1:]
            _all_named(api, wanted)
            return
        except ApiError as error:
            patience.look(error)
            time.sleep(0.05)


def _all_named(api: Api, wanted: Sequence[tuple[str, str, str]]) -> None:
    """Raise ApiError if discovery lacks a resource."""
    named = {
        (group["metadata"]["name"], version["version"], resource["resource"])
        for group in api.call("GET", "/apis", accept=_DISCOVERY)["items"]
        for version in group.get("versions") or ()
        for resource in version.get("resources") or ()
    }
    if missing := set(wanted) - named:
        raise ApiError("GET /apis", http.HTTPStatus.NOT_FOUND, f"no {sorted(missing)} yet")
