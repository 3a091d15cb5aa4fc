"""One cluster's control plane, and the operations of tests on it.

A `Plane` is an API server, a controller manager and, in a worker, a scheduler and kwok. A plane
keeps its port, keys and data over crashes, so that clients find it again. Every method blocks, so
inside an event loop use `asyncio.to_thread`.
"""

import base64
import itertools
import json
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from berthmaster.lab.controlplane import components
from berthmaster.lab.controlplane.api import (
    CALL_LIMIT_S,
    Api,
    ApiError,
    Object,
    Unreachable,
    kubeconfig,
    wait_served,
)
from berthmaster.lab.controlplane.audit import AuditLog
from berthmaster.lab.controlplane.build import Programs
from berthmaster.lab.controlplane.certificates import LOOPBACK, Authority, Pair, service_account_key
from berthmaster.lab.controlplane.patience import hang_s, wait_until
from berthmaster.lab.controlplane.processes import Failed, Process
from berthmaster.lab.controlplane.proxy import Proxy
from berthmaster.lib.runtime.ports import PortClaims

ADMIN: Final = "admin"
ADMINS: Final = ("system:masters",)
NODE_LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
DEFINITIONS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_READY_CALL_LIMIT_S: Final = 5.0

Role = Literal["hub", "worker"]


class Etcd:
    """The shared store of all planes; each plane has its own prefix."""

    def __init__(self, folder: Path, programs: Programs) -> None:
        self._claims = PortClaims()  # kept over restarts
        self.port, peer_port = self._claims.choose(2)
        argv = components.etcd(programs, folder, self.port, peer_port)
        self.process = Process("etcd", argv, folder / "etcd.log")

    @property
    def url(self) -> str:
        """Return the URL for API servers."""
        return f"http://{LOOPBACK}:{self.port}"

    def start(self) -> None:
        """Start etcd, and wait until it is healthy. Raises Failed."""
        self.process.launch()
        self.process.wait_ready(self._healthy)

    def compact(self) -> int:
        """Compact all revisions before the newest, and return the newest."""
        found = self._call("kv/range", {"key": base64.b64encode(b"\0").decode()})
        revision = int(found["header"]["revision"])
        self._call("kv/compaction", {"revision": revision, "physical": True})
        return revision

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=1) as reply:
                return bool(json.load(reply)["health"] == "true")
        except OSError:
            return False

    def _call(self, method: str, body: Mapping[str, object]) -> Object:
        request = urllib.request.Request(f"{self.url}/v3/{method}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=hang_s()) as reply:
            answer = json.load(reply)
        assert isinstance(answer, dict)
        return answer


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The processes of one plane; a hub has no scheduler and no kwok."""

    api_server: Process
    controller_manager: Process
    scheduler: Process | None
    kwok: Process | None

    def followers(self) -> list[Process]:
        """Return the clients of the API server."""
        several = (self.controller_manager, self.scheduler, self.kwok)
        return [part for part in several if part is not None]

    def all(self) -> list[Process]:
        return [self.api_server, *self.followers()]


class Plane:
    """One cluster, created by Planes."""

    def __init__(self, name: str, role: Role, folder: Path, programs: Programs, etcd: Etcd) -> None:
        self.name, self.role, self.folder = name, role, folder
        self._claims = PortClaims()  # kept over restarts
        self.port, kwok_port = self._claims.choose(2)
        self.url = f"https://{LOOPBACK}:{self.port}"
        self._etcd = etcd
        self._numbers = itertools.count(1)
        self._apis: list[Api] = []
        self._proxies: list[Proxy] = []
        self._crds: dict[str, Mapping[str, Any]] = {}
        self._pairs: dict[tuple[str, tuple[str, ...]], Pair] = {}
        self.programs = programs
        self._authority = Authority(folder, name)
        self.ca = self._authority.certificate
        self.audit = AuditLog(folder / "audit.log")
        self.kubeconfig = self.kubeconfig_for(ADMIN, ADMINS)
        self.api = self.api_for(ADMIN, ADMINS)
        self.parts = self._make_parts(programs, kwok_port)

    def _process(self, name: str, argv: list[str]) -> Process:
        home = {"HOME": str(self.folder), "KWOK_WORKDIR": str(self.folder / "kwok")}
        return Process(f"{self.name}: {name}", argv, self.folder / f"{name}.log", home)

    def _make_parts(self, programs: Programs, kwok_port: int) -> Parts:
        files = components.ApiServerFiles(
            folder=self.folder,
            ca=self.ca,
            serving=self._authority.serving(
                "kube-apiserver", "kubernetes", "kubernetes.default.svc"
            ),
            tokens=service_account_key(self.folder),
            audit_log=self.audit.path,
        )
        worker = self.role == "worker"
        controllers = components.WORKER_CONTROLLERS if worker else components.HUB_CONTROLLERS

        process = self._process

        def identity(user: str) -> Path:
            return self.kubeconfig_for(user, ADMINS)

        manager = identity("system:kube-controller-manager")
        scheduler = components.kube_scheduler(programs, identity("system:kube-scheduler"))
        return Parts(
            api_server=process(
                "kube-apiserver",
                components.kube_apiserver(programs, self.name, self.port, self._etcd.url, files),
            ),
            controller_manager=process(
                "kube-controller-manager",
                components.kube_controller_manager(programs, manager, files, controllers),
            ),
            scheduler=process("kube-scheduler", scheduler) if worker else None,
            kwok=process("kwok", components.kwok(programs, identity("kwok"), kwok_port))
            if worker
            else None,
        )

    # ---- identities

    @property
    def ca_pem(self) -> bytes:
        """Return the CA certificate for clients."""
        return self.ca.read_bytes()

    def api_for(
        self,
        user: str = "",
        groups: Sequence[str] = (),
        *,
        token: str = "",
        via: Proxy | None = None,
        limit_s: float = CALL_LIMIT_S,
    ) -> Api:
        """Return the test client for any user, with a token, or anonymous."""
        pair = self._pair(user, groups) if user else None
        api = Api(self._url(via), self.ca, pair, token, limit_s=limit_s)
        self._apis.append(api)
        return api

    def kubeconfig_for(
        self, user: str, groups: Sequence[str] = (), *, via: Proxy | None = None
    ) -> Path:
        """Return a kubeconfig with a client certificate of this user, optionally through a
        proxy."""
        pair = self._pair(user, groups)
        return self._write_kubeconfig(pair, token="", via=via)

    def kubeconfig_with_token(self, token: str, *, via: Proxy | None = None) -> Path:
        """Return a kubeconfig with a token."""
        return self._write_kubeconfig(None, token=token, via=via)

    def _write_kubeconfig(self, pair: Pair | None, token: str, via: Proxy | None) -> Path:
        path = self.folder / f"kubeconfig-{next(self._numbers)}"
        path.touch(mode=0o600)
        path.write_text(
            kubeconfig(
                server=self._url(via), ca_pem=self.ca_pem, pair=pair, token=token, name=self.name
            )
        )
        return path

    def _url(self, via: Proxy | None) -> str:
        return self.url if via is None else via.url

    def _pair(self, user: str, groups: Sequence[str] = ()) -> Pair:
        """Return the client certificate of this user, always the same one."""
        key = (user, tuple(groups))
        if key not in self._pairs:
            file = f"user-{len(self._pairs)}"
            self._pairs[key] = self._authority.client(user, groups, file=file)
        return self._pairs[key]

    def token_for(self, namespace: str, account: str, lasts_s: int = 3600) -> str:
        """Return a token of a service account, by TokenRequest."""
        answer = self.api.create(
            f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token",
            {
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenRequest",
                "spec": {"expirationSeconds": lasts_s},
            },
        )
        return str(answer["status"]["token"])

    def proxy(self, delay_s: float = 0.0) -> Proxy:
        """Return an open proxy before the API server; it ends with the plane at latest."""
        proxy = Proxy(self.port, delay_s=delay_s)
        proxy.start()
        self._proxies.append(proxy)
        return proxy

    # ---- content

    def make_namespace(self, name: str) -> str:
        """Create a namespace, and wait for its default service account, which pods need."""
        self.api.create("/api/v1/namespaces", {"metadata": {"name": name}})
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        wait_until(lambda: self.api.find(account), f"{self.name}: {account}")
        return name

    def apply(self, documents: Sequence[Mapping[str, Any]]) -> None:
        """Apply each document; return when the resource definitions are served."""
        crds = [each for each in documents if each["kind"] == "CustomResourceDefinition"]
        for each in crds:
            self.api.apply(each)
        wait_served(self.api, crds)
        self._crds |= {each["metadata"]["name"]: each for each in crds}
        for each in documents:
            if each["kind"] != "CustomResourceDefinition":
                self.api.apply(each)

    def withdraw(self, crds: Sequence[Mapping[str, Any]]) -> None:
        """Delete resource definitions with all their objects."""
        for each in crds:
            if self._crds.pop(each["metadata"]["name"], None) is not None:
                self.api.delete(self.api.path_of(each))

    # ---- failures

    def launch_api_server(self) -> None:
        """Start the API server without waiting for it."""
        self.parts.api_server.launch()

    def wait_ready(self) -> None:
        """Wait until the API server is ready and serves the applied definitions. Raises Failed.

        The server is ready some time before it has read custom resources, and answers 429 until
        then.
        """
        self.parts.api_server.wait_ready(self.ready)
        found = [one["metadata"] for one in self.api.items(DEFINITIONS)]
        there = {one["name"] for one in found if "deletionTimestamp" not in one}
        # The server never serves definitions that a test has deleted.
        self._crds = {name: each for name, each in self._crds.items() if name in there}
        wait_served(self.api, list(self._crds.values()))

    def start_api_server(self) -> None:
        """Start the API server and wait until it is ready.

        Components that need the API server restart too. In a real cluster they lose their lease and
        restart. Here they have no lease, and would return up to half a minute later, because they
        pause that long between retries.
        """
        waiting = [part for part in self.parts.followers() if part.running]
        for part in waiting:
            part.kill()
        self.launch_api_server()
        self.wait_ready()
        if self.parts.kwok in waiting:  # a kwok ignores nodes whose lease another kwok holds
            self.api.delete(NODE_LEASES)
        for part in waiting:
            part.launch()

    def crash_api_server(self) -> None:
        """Kill the API server with SIGKILL. Its clients keep running."""
        self.parts.api_server.kill()

    def pause_api_server(self) -> None:
        """Stop the API server with open connections, so that it answers nothing."""
        self.parts.api_server.pause()

    def resume_api_server(self) -> None:
        """Resume the API server."""
        self.parts.api_server.resume()

    def configure_scheduler(self, settings: Mapping[str, Any] | None) -> None:
        """Replace the scheduler by one with these KubeSchedulerConfiguration settings.

        None = the original settings.
        """
        assert self.parts.scheduler is not None, f"{self.name} has no scheduler"
        self.parts.scheduler.kill()
        identity = self.kubeconfig_for("system:kube-scheduler", ADMINS)
        path: Path | None = None
        if settings is not None:
            path = self.folder / f"scheduler-{next(self._numbers)}.json"
            path.write_text(json.dumps(components.scheduler_configuration(identity, settings)))
        argv = components.kube_scheduler(self.programs, identity, path)
        scheduler = self._process("kube-scheduler", argv)
        self.parts = replace(self.parts, scheduler=scheduler)
        scheduler.launch()

    def forget_history(self) -> None:
        """Make every older resourceVersion expire, so that a list or watch from one gets 410.

        Compaction alone is not enough: an API server answers watches from memory, so it also
        crashes and restarts. Other planes share the store, and lose history that they do not cache.
        """
        self.crash_api_server()
        self._etcd.compact()
        self.start_api_server()

    def ready(self) -> bool:
        """Return whether the API server reports complete start-up."""
        probe = Api(self.url, self.ca, self._pair(ADMIN, ADMINS), limit_s=_READY_CALL_LIMIT_S)
        try:
            return probe.get("/readyz") == {"text": "ok"}
        except (ApiError, Unreachable):
            return False
        finally:
            probe.close()

    def mend(self) -> None:
        """Restart whatever a test has stopped, and remove the test's proxies and clients."""
        for proxy in self._proxies:
            proxy.stop()
        self._proxies.clear()
        for api in self._apis[1:]:  # all but the plane's own
            api.close()
        del self._apis[1:]
        for part in self.parts.all():
            part.resume()
        if not self.parts.api_server.running:
            self.start_api_server()
        for part in self.parts.followers():
            if not part.running:
                part.launch()

    def start_followers(self) -> None:
        """Start the API server's clients, and wait until the cluster accepts pods."""
        for part in self.parts.followers():
            part.launch()
        path = "/api/v1/namespaces/default/serviceaccounts/default"

        def served() -> bool:
            for part in self.parts.followers():
                if not part.running:
                    raise Failed(f"{part.name} ended by itself: {part.last_words()}")
            return self.api.find(path) is not None

        wait_until(served, f"{self.name}: {path}")

    def stop(self) -> None:
        for proxy in self._proxies:
            proxy.stop()
        self._proxies.clear()
        for api in self._apis:
            api.close()
        for part in reversed(self.parts.all()):
            part.kill()
