"""Kubeconfigs and a pod's own service account: where they are, and what we take from them.

A kubeconfig of a person is read as kubectl reads it: several files merged, paths relative to the
file they stand in, plugins run. One out of a Secret comes from somebody else: it may name neither
programs nor files of ours, and nothing in it may weaken TLS (Kueue refuses the same). Every error
names file, context and field, and never a value that could be a credential. kubernetes_asyncio has
no such check; what passes ours goes on to its loader (see loader.py).
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
MAX_FILE_BYTES: Final = 2**20  # what a Secret can hold; other files of a kubeconfig are smaller
MAX_TOKEN_BYTES: Final = 64 * 1024
SECRET: Final = "kubeconfig of the Secret"
EXEC_VERSIONS: Final = (
    "client.authentication.k8s.io/v1",
    "client.authentication.k8s.io/v1beta1",
)

_READING = threading.Lock()


@dataclass(frozen=True, repr=False)
class Access:
    """How to reach one API server and as whom: one context of a kubeconfig, read and vetted."""

    server: str  # https://host:port, perhaps with a path; no slash at its end
    context: str = ""  # the kubeconfig's name for it, for people
    source: str = ""  # where that was found, for people
    ca: bytes = b""  # PEM; empty = the system's
    verify: bool = True  # False only if a person's own kubeconfig says so
    server_name: str = ""  # the name in its certificate, where that is another than the host
    proxy: str = ""
    namespace: str = ""  # the context's default
    headers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # impersonation
    user: User = field(default_factory=User)  # one way to authenticate; files only of tokens
    pair: tuple[bytes, bytes] = (b"", b"")  # client certificate and key as PEM; empty = none

    def __repr__(self) -> str:
        return f"Access(server={self.server!r}, context={self.context!r})"


async def from_kubeconfig(path: Path | None = None, context: str = "") -> Access:
    """Access by a kubeconfig file; without a path, by those that $KUBECONFIG names, or else
    ~/.kube/config; without a context, by the current one. Raises BadConfig."""
    return await asyncio.to_thread(_one_at_a_time, path, context)


def _one_at_a_time(path: Path | None, context: str) -> Access:
    """Several contexts are read at once by `berth up`. Two threads that were the first to import
    the library and to decode a type ended the process by a segmentation fault in the decoder."""
    with _READING:
        return _from_files(path, context)


def from_kubeconfig_bytes(
    data: bytes, *, allow_exec: bool = False, source: str = SECRET, context: str = ""
) -> Access:
    """Access by a kubeconfig that came from elsewhere. Raises BadConfig for whatever would let its
    author run programs, read files here, or talk to a server that nobody has checked."""
    config = parse(data, source, base=None)
    return _Reader(config, source, context, stranger=True, allow_exec=allow_exec).access()


async def in_cluster(folder: Path = SERVICE_ACCOUNT) -> Access:
    """Access of the pod that we run in. Raises BadConfig when this is none.

    The library finds the API server. Its way of renewing the token is not used: that fails at the
    moment when the file is replaced, waits its minute even when the token was refused, and takes a
    line end for a part of it.
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
        pass  # whoever needs a default says so then
    access = Access(
        server=configuration.host or "",
        context="in-cluster",
        source=source,
        ca=ca,
        namespace=namespace,
        user=User(token_file=str(folder / "token")),
    )
    read_token(access)  # now, while somebody looks
    return access


def read_token(access: Access) -> str:
    """What the token file of this access holds now. Raises BadConfig."""
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
            user = User()  # at this the library fails with a TypeError
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
        """The one way to authenticate beside a certificate; kubectl prefers them in this order."""
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
        # As kubectl: a bare name is looked for on PATH, a path is the file's.
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
