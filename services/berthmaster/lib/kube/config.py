"""Kubeconfigs and a pod's own service account: where to find them, and the fields in use.

An operator's kubeconfig is read as kubectl reads it: several files are merged, paths are relative
to their file, plugins run. A kubeconfig from a Secret is untrusted. Such a file must not name
programs or local files, nor weaken TLS. Kueue has the same rule.

Every error names file, context and field, and never a value that could be a credential.
kubernetes_asyncio has no such checks. A checked config goes to the library's loader (loader.py).
"""

import asyncio
import base64
import binascii
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, urlsplit

import msgspec

from berthmaster.lib.kube.certificate_files import check_authority, check_pair
from berthmaster.lib.kube.errors import BadConfig
from berthmaster.lib.kube.kubeconfig import Cluster, Exec, Kubeconfig, User, merged, parse

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
MAX_FILE_BYTES: Final = 2**20  # limit of a Secret; other kubeconfig files are smaller
MAX_TOKEN_BYTES: Final = 64 * 1024
SECRET: Final = "kubeconfig of the Secret"
EXEC_VERSIONS: Final = (
    "client.authentication.k8s.io/v1",
    "client.authentication.k8s.io/v1beta1",
)

_READING = threading.Lock()


@dataclass(frozen=True, repr=False)
class Access:
    """One checked context of a kubeconfig: the address of an API server, and the credentials."""

    server: str  # https://host:port, perhaps with a path, without a trailing slash
    context: str = ""  # name of the context in the kubeconfig, for operators
    source: str = ""  # file of the context, for operators
    ca: bytes = b""  # PEM; empty = the system's authorities
    verify: bool = True  # False only if an operator's own kubeconfig disables the check
    server_name: str = ""  # name in the server's certificate; "" = the host
    proxy: str = ""
    namespace: str = ""  # default namespace of the context
    headers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # of impersonation
    user: User = field(default_factory=User)  # one authentication method; files hold tokens only
    pair: tuple[bytes, bytes] = (b"", b"")  # client certificate and key in PEM form; empty = none

    def __repr__(self) -> str:
        return f"Access(server={self.server!r}, context={self.context!r})"


async def from_kubeconfig(path: Path | None = None, context: str = "") -> Access:
    """Return the access of a kubeconfig file. Raise BadConfig.

    Without a path, read the files in $KUBECONFIG, or else ~/.kube/config. Without a context, use
    the current one.
    """
    return await asyncio.to_thread(_one_at_a_time, path, context)


def _one_at_a_time(path: Path | None, context: str) -> Access:
    """Read a kubeconfig under a lock, because `berth up` reads several contexts in threads.

    Two threads that imported the library and decoded a type for the first time crashed the process
    with a segmentation fault in the decoder.
    """
    with _READING:
        return _from_files(path, context)


def from_kubeconfig_bytes(
    data: bytes, *, allow_exec: bool = False, source: str = SECRET, context: str = ""
) -> Access:
    """Return the access of an untrusted kubeconfig.

    Raise BadConfig for content that would let its author run programs, read local files, or send
    requests to an unverified server.
    """
    config = parse(data, source, base=None)
    return _Reader(config, source, context, stranger=True, allow_exec=allow_exec).access()


async def in_cluster(folder: Path = SERVICE_ACCOUNT) -> Access:
    """Return the access of this pod. Raise BadConfig outside a pod.

    The library finds the API server, but does not renew the token: its renewal fails while the file
    is being replaced, waits a minute even after a 401, and keeps the line end as part of the token.
    """
    return await asyncio.to_thread(_of_pod, folder)


def _of_pod(folder: Path) -> Access:
    from berthmaster.lib.kube.library import ConfigException, Configuration, load_incluster_config

    source = "the pod's service account"
    configuration = Configuration()
    try:
        load_incluster_config(
            configuration,
            try_refresh_token=False,
            token_filename=str(folder / "token"),
            cert_filename=str(folder / "ca.crt"),
        )
    except (ConfigException, OSError, ValueError) as error:
        problem = f"{error} ({folder}; outside a pod, give a kubeconfig)"
        raise BadConfig(source, "", "", problem) from None
    ca = _read_file(folder / "ca.crt", source, "", "ca.crt")
    try:
        check_authority(ca)
    except ValueError as error:
        raise BadConfig(source, "", "ca.crt", str(error)) from None
    namespace = ""
    try:
        namespace = (folder / "namespace").read_text().strip()
    except OSError:
        pass  # a caller that needs a default namespace raises an error
    access = Access(
        server=configuration.host or "",
        context="in-cluster",
        source=source,
        ca=ca,
        namespace=namespace,
        user=User(token_file=str(folder / "token")),
    )
    read_token(access)  # fail at start rather than at the first request
    return access


def read_token(access: Access) -> str:
    """Return the token in the token file. Raise BadConfig."""
    path = Path(access.user.token_file)
    problem = ""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_TOKEN_BYTES)
    except OSError as error:
        problem = f"{path}: {error.strerror or error}"
        data = b""
    token = data.decode("ascii", errors="replace").strip()
    if not problem and (not token or not token.isprintable() or not token.isascii()):
        problem = f"{path} holds no token"
    if problem:
        raise BadConfig(access.source, access.context, "tokenFile", problem)
    return token


def kubeconfig_paths() -> list[Path]:
    """Return the paths that kubectl reads: those in $KUBECONFIG, or ~/.kube/config."""
    named = [Path(part) for part in os.environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    return named or [Path.home() / ".kube" / "config"]


def contexts(path: Path | None = None) -> tuple[str, ...]:
    """Return the names of all contexts, for an operator to choose from. Raise BadConfig."""
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
            continue  # as in kubectl, some of several files may be missing
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
    """Reads one context of a kubeconfig. ``stranger`` marks an untrusted file, as from a Secret."""

    config: Kubeconfig
    source: str
    context: str
    stranger: bool
    allow_exec: bool

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
            user = User()  # the library raises TypeError if the user is missing
        if self.stranger:
            self._refuse(cluster, user)
        server = self._server(cluster)
        ca = self._bytes(cluster, "certificate-authority", cluster.ca_data, cluster.ca_file)
        if ca:
            self._try("certificate-authority", lambda: check_authority(ca))
        if ca and cluster.insecure:
            raise self._bad(
                "insecure-skip-tls-verify", "cannot be true beside a certificate authority"
            )
        return Access(
            server=server,
            context=self.context,
            source=self.source,
            ca=ca,
            verify=not cluster.insecure,
            server_name=cluster.tls_server_name,
            proxy=self._proxy(cluster),
            namespace=context.namespace,
            headers=self._impersonation(user),
            user=self._authenticated(user),
            pair=self._pair(user),
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
            "auth-provider": (
                user.auth_provider is not None,
                "is not supported; use the token of a service account",
            ),
            "username": (user.username or user.password, "API servers know no passwords"),
        }
        for name, (there, why) in refused.items():
            if there:
                raise self._bad(name, f"not accepted from a Secret: {why}")

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
        """Return the parts of a URL. Errors show no part, since a URL may hold a password."""
        try:
            parts = urlsplit(url)
            _ = parts.port
            host = (parts.hostname or "").encode("idna")
        except ValueError:
            raise self._bad(field, f"must be {form}") from None
        if parts.scheme not in ("https", "http") or not host:
            raise self._bad(field, f"must be {form}")
        return parts

    def _pair(self, user: User) -> tuple[bytes, bytes]:
        certificate = self._bytes(
            user, "client-certificate", user.certificate_data, user.certificate_file
        )
        key = self._bytes(user, "client-key", user.key_data, user.key_file)
        if bool(certificate) != bool(key):
            raise self._bad("client-certificate", "certificate and key come together")
        if certificate:
            self._try("client-certificate", lambda: check_pair(certificate, key))
        return certificate, key

    def _authenticated(self, user: User) -> User:
        """Return one authentication method beside a certificate, preferred in kubectl's order."""
        if user.token_file:
            return User(token_file=str(self._resolve(user.base, user.token_file)))
        if user.token:
            if not user.token.isascii() or not user.token.isprintable():
                raise self._bad("token", "holds what no HTTP header can")
            return User(token=user.token)
        if user.exec is not None:
            return User(exec=self._plugin(user, user.exec))
        if user.auth_provider is not None:
            raise self._bad(
                "auth-provider",
                f"{user.auth_provider.name!r} is not supported, as Kubernetes has removed auth "
                "providers; right is an exec plugin, such as kubelogin for OpenID Connect",
            )
        return User(username=user.username, password=user.password)

    def _plugin(self, user: User, wanted: Exec) -> Exec:
        if not wanted.command:
            raise self._bad("exec.command", "missing")
        if wanted.api_version not in EXEC_VERSIONS:
            raise self._bad("exec.apiVersion", f"must be one of {', '.join(EXEC_VERSIONS)}")
        if wanted.interactive_mode == "Always":
            raise self._bad("exec.interactiveMode", "a service has no terminal to ask at")
        if "/" not in wanted.command:
            return wanted
        # As in kubectl, a bare name is found on PATH, and a path is relative to its file.
        return msgspec.structs.replace(
            wanted, command=str(self._resolve(user.base, wanted.command))
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
        """Return the field's own data (base64), or the content of the file named by the field."""
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
