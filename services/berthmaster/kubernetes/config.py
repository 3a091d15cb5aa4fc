"""Kubeconfigs and a pod's own service account, as what a client needs to know.

A kubeconfig of a person is read as kubectl reads it: several files merged, paths relative to the
file they stand in, plugins run. One out of a Secret comes from somebody else: it may name neither
programs nor files of ours, and nothing in it may weaken TLS (Kueue refuses the same). Every error
names file, context and field, and never a value that could be a credential.
"""

import asyncio
import base64
import binascii
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, urlsplit

from berthmaster.kubernetes.access import (
    Access,
    Credential,
    CredentialSource,
    Fixed,
    TokenFile,
    basic,
    bearer,
)
from berthmaster.kubernetes.errors import BadConfig
from berthmaster.kubernetes.kubeconfig import Cluster, Kubeconfig, User, merged, parse
from berthmaster.kubernetes.plugin import VERSIONS, Plugin
from berthmaster.kubernetes.tls import show, trusting

__all__ = ["Access", "contexts", "from_kubeconfig", "from_kubeconfig_bytes", "in_cluster"]

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
MAX_FILE_BYTES: Final = 2**20  # what a Secret can hold; other files of a kubeconfig are smaller
SECRET: Final = "kubeconfig of the Secret"


async def from_kubeconfig(path: Path | None = None, context: str = "") -> Access:
    """Access by a kubeconfig file; without a path, by those that $KUBECONFIG names, or else
    ~/.kube/config; without a context, by the current one. Raises BadConfig."""
    return await asyncio.to_thread(_from_files, path, context)


def from_kubeconfig_bytes(
    data: bytes, *, allow_exec: bool = False, source: str = SECRET, context: str = ""
) -> Access:
    """Access by a kubeconfig that came from elsewhere. Raises BadConfig for whatever would let its
    author run programs, read files here, or talk to a server that nobody has checked."""
    config = parse(data, source, base=None)
    return _Reader(config, source, context, stranger=True, allow_exec=allow_exec).access()


async def in_cluster(folder: Path = SERVICE_ACCOUNT) -> Access:
    """Access of the pod that we run in. Raises BadConfig when this is none."""
    source = "the pod's service account"
    host = os.environ.get("KUBERNETES_SERVICE_HOST", "")
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        raise BadConfig(
            source,
            "",
            "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT",
            "not set: this is no pod; give a kubeconfig",
        )
    host = f"[{host}]" if ":" in host else host
    ca = await asyncio.to_thread(_read_file, folder / "ca.crt", source, "", "ca.crt")
    try:
        trusting(ca)
    except ValueError as error:
        raise BadConfig(source, "", "ca.crt", str(error)) from None
    tokens = TokenFile(folder / "token", source=source)
    await tokens.credential()  # now, while somebody looks
    namespace = ""
    try:
        namespace = (await asyncio.to_thread((folder / "namespace").read_text)).strip()
    except OSError:
        pass  # whoever needs a default says so then
    return Access(
        server=f"https://{host}:{port}",
        context="in-cluster",
        ca=ca,
        namespace=namespace,
        source=tokens,
    )


def kubeconfig_paths() -> list[Path]:
    """Where kubectl would look: $KUBECONFIG, which may name several, or the home folder."""
    named = [Path(part) for part in os.environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    return named or [Path.home() / ".kube" / "config"]


def contexts(path: Path | None = None) -> tuple[str, ...]:
    """The names of all contexts, for people to choose from. Raises BadConfig."""
    return tuple(_load(path)[0].contexts)


def _from_files(path: Path | None, context: str) -> Access:
    config, source = _load(path)
    return _Reader(config, source, context, stranger=False, allow_exec=True).access()


def _load(path: Path | None) -> tuple[Kubeconfig, str]:
    paths = [path] if path is not None else kubeconfig_paths()
    source = os.pathsep.join(str(one) for one in paths)
    found = []
    for one in paths:
        if path is None and len(paths) > 1 and not one.exists():
            continue  # as kubectl does: of several, some may be missing
        data = _read_file(one, str(one), "", "")
        found.append(parse(data, str(one), base=one.absolute().parent))
    if not found:
        raise BadConfig(source, "", "", "none of these files exists")
    return merged(found), source


def _read_file(path: Path, source: str, context: str, field: str) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        problem = error.strerror or type(error).__name__
        raise BadConfig(source, context, field, f"{path}: {problem}") from None
    if len(data) > MAX_FILE_BYTES:
        raise BadConfig(source, context, field, f"{path}: more than {MAX_FILE_BYTES} bytes")
    return data


@dataclass
class _Reader:
    """Reads one context of a kubeconfig; ``stranger``: it did not come from who runs us."""

    config: Kubeconfig
    source: str
    context: str
    stranger: bool
    allow_exec: bool
    now: Callable[[], float] = time.time

    def access(self) -> Access:
        self.context = self.context or self.config.current_context
        if not self.context:
            raise self._bad("current-context", f"not set; there are {self._listed()}")
        context = self.config.contexts.get(self.context)
        if context is None:
            raise self._bad("contexts", f"no such context; there are {self._listed()}")
        cluster = self.config.clusters.get(context.cluster)
        if cluster is None:
            raise self._bad("cluster", f"no cluster {context.cluster!r} in clusters")
        user = self.config.users.get(context.user)
        if user is None:
            if context.user:
                raise self._bad("user", f"no user {context.user!r} in users")
            user = User()
        if self.stranger:
            self._refuse(cluster, user)
        server = self._server(cluster)
        ca = self._bytes(cluster, "certificate-authority", cluster.ca_data, cluster.ca_file)
        if ca:
            self._try("certificate-authority", lambda: trusting(ca))
        if ca and cluster.insecure:
            raise self._bad(
                "insecure-skip-tls-verify", "cannot be true beside a certificate authority"
            )
        return Access(
            server=server,
            context=self.context,
            ca=ca,
            verify=not cluster.insecure,
            server_name=cluster.tls_server_name,
            proxy=self._proxy(cluster),
            namespace=context.namespace,
            headers=self._impersonation(user),
            source=self._credentials(cluster, user, ca),
        )

    def _listed(self) -> str:
        return ", ".join(sorted(self.config.contexts)[:20]) or "no contexts at all"

    def _refuse(self, cluster: Cluster, user: User) -> None:
        files = "names a file of this machine; put the content itself into the kubeconfig"
        refused = {
            "insecure-skip-tls-verify": (cluster.insecure, "TLS must be checked"),
            "certificate-authority": (cluster.ca_file, files),
            "client-certificate": (user.certificate_file, files),
            "client-key": (user.key_file, files),
            "tokenFile": (user.token_file, files),
            "exec": (
                user.exec is not None and not self.allow_exec,
                "would run a program here; use the token of a service account",
            ),
            "username": (user.username or user.password, "API servers know no passwords"),
        }
        for field, (there, why) in refused.items():
            if there:
                raise self._bad(field, f"not accepted from a Secret: {why}")

    def _server(self, cluster: Cluster) -> str:
        parts = self._url("server", cluster.server, "https://host:port")
        if parts.username or parts.password or parts.query or parts.fragment:
            raise self._bad("server", "must be https://host:port, without user, query or fragment")
        loopback = parts.hostname in ("localhost", "127.0.0.1", "::1")
        if self.stranger and parts.scheme == "http" and not loopback:
            raise self._bad("server", "must be https: credentials would travel in the open")
        return cluster.server.rstrip("/")

    def _proxy(self, cluster: Cluster) -> str:
        if cluster.proxy_url:
            self._url("proxy-url", cluster.proxy_url, "http://host:port (no SOCKS)")
        return cluster.proxy_url

    def _url(self, field: str, url: str, form: str) -> SplitResult:
        """The parts of a URL that can be connected to; no part of it is told, it may hold a
        password."""
        try:
            parts = urlsplit(url)
            _ = parts.port
            host = (parts.hostname or "").encode("idna")
        except ValueError:
            raise self._bad(field, f"must be {form}") from None
        if parts.scheme not in ("https", "http") or not host:
            raise self._bad(field, f"must be {form}")
        return parts

    def _credentials(self, cluster: Cluster, user: User, ca: bytes) -> CredentialSource:
        certificate = self._bytes(
            user, "client-certificate", user.certificate_data, user.certificate_file
        )
        key = self._bytes(user, "client-key", user.key_data, user.key_file)
        if bool(certificate) != bool(key):
            raise self._bad("client-certificate", "certificate and key come together")
        if certificate:
            self._try("client-certificate", lambda: show(trusting(verify=False), certificate, key))
        base = Credential("", certificate, key)
        if user.token_file:
            path = self._resolve(user.base, user.token_file)
            return TokenFile(path, source=self.source, context=self.context, base=base)
        if user.token:
            if not user.token.isascii() or not user.token.isprintable():
                raise self._bad("token", "holds what no HTTP header can")
            return Fixed(bearer(user.token, base))
        if user.exec is not None:
            return self._plugin(cluster, user, ca, base)
        if user.auth_provider is not None:
            raise self._bad("auth-provider", "no longer part of Kubernetes; use an exec plugin")
        if user.username or user.password:
            return Fixed(basic(user.username, user.password, base))
        return Fixed(base)

    def _plugin(self, cluster: Cluster, user: User, ca: bytes, base: Credential) -> Plugin:
        wanted = user.exec
        assert wanted is not None
        if not wanted.command:
            raise self._bad("exec.command", "missing")
        if wanted.api_version not in VERSIONS:
            raise self._bad("exec.apiVersion", f"must be one of {', '.join(VERSIONS)}")
        if wanted.interactive_mode == "Always":
            raise self._bad("exec.interactiveMode", "a service has no terminal to ask at")
        command = wanted.command
        if "/" in command:  # kubectl: a bare name is looked for on PATH, a path is the file's
            command = str(self._resolve(user.base, command))
        told: dict[str, object] | None = None
        if wanted.provide_cluster_info:
            told = {"server": cluster.server}
            if ca:
                told["certificate-authority-data"] = base64.b64encode(ca).decode()
            if cluster.tls_server_name:
                told["tls-server-name"] = cluster.tls_server_name
        return Plugin(
            [command, *(wanted.args or ())],
            api_version=wanted.api_version,
            source=self.source,
            context=self.context,
            env={one.name: one.value for one in wanted.env or ()},
            cluster=told,
            hint=wanted.install_hint.strip(),
            base=base,
            now=self.now,
        )

    def _impersonation(self, user: User) -> Mapping[str, tuple[str, ...]]:
        if not user.as_user:
            if user.as_groups or user.as_uid or user.as_user_extra:
                raise self._bad("as", "missing, though groups, uid or extra are given")
            return {}
        headers: dict[str, tuple[str, ...]] = {"Impersonate-User": (user.as_user,)}
        if user.as_uid:
            headers["Impersonate-Uid"] = (user.as_uid,)
        if user.as_groups:
            headers["Impersonate-Group"] = tuple(user.as_groups)
        for name, values in (user.as_user_extra or {}).items():
            headers[f"Impersonate-Extra-{name}"] = tuple(values)
        return headers

    def _bytes(self, where: Cluster | User, field: str, data: str, file: str) -> bytes:
        """What a field says itself (base64), or the file that it names."""
        if data:
            try:
                return base64.b64decode("".join(data.split()), validate=True)
            except (binascii.Error, ValueError):
                raise self._bad(f"{field}-data", "is not base64") from None
        if file:
            return _read_file(self._resolve(where.base, file), self.source, self.context, field)
        return b""

    def _resolve(self, base: str, path: str) -> Path:
        return Path(base) / Path(path).expanduser() if base else Path(path)

    def _try(self, field: str, check: Callable[[], object]) -> None:
        try:
            check()
        except ValueError as error:
            raise self._bad(field, str(error)) from None

    def _bad(self, field: str, problem: str) -> BadConfig:
        return BadConfig(self.source, self.context, field, problem)
