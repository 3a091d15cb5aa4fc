"""The form of a kubeconfig file, and the merge of several files. Pure.

kubernetes_asyncio only gets content that was parsed here. The library's own reader follows YAML
aliases (a few lines become gigabytes), accepts files of any size and shape, and prefers the last
current-context to the first. For a field of the wrong type the library raises TypeError or shows
the value.

Of two entries with the same name the first one wins, as in kubectl. Unused fields are skipped.
Errors name the field and never show its value.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from berthmaster.lib.kube.errors import BadConfig
from berthmaster.lib.runtime.plain_yaml import NotYaml, Refused, document


class Cluster(msgspec.Struct, rename="kebab", kw_only=True, omit_defaults=True):
    """The address of a server, and how to verify its certificate."""

    server: str = ""
    ca_file: str = msgspec.field(default="", name="certificate-authority")
    ca_data: str = msgspec.field(default="", name="certificate-authority-data")
    insecure: bool = msgspec.field(default=False, name="insecure-skip-tls-verify")
    tls_server_name: str = ""
    proxy_url: str = ""
    base: str = msgspec.field(default="", name="(folder)")  # folder of the file, set by parse


class EnvVar(msgspec.Struct):
    name: str = ""
    value: str = ""


class Exec(msgspec.Struct, rename="camel", kw_only=True):
    """A credential plugin."""

    command: str = ""
    api_version: str = ""
    args: list[str] | None = None
    env: list[EnvVar] | None = None
    install_hint: str = ""
    interactive_mode: str = ""
    provide_cluster_info: bool = False


class AuthProvider(msgspec.Struct):
    """A token provider inside the client. Kubernetes has replaced these with plugins."""

    name: str = ""


class User(msgspec.Struct, rename="kebab", kw_only=True, omit_defaults=True):
    """Credentials of a user. ``repr`` shows no field, since most are secret."""

    token: str = ""
    token_file: str = msgspec.field(default="", name="tokenFile")
    certificate_file: str = msgspec.field(default="", name="client-certificate")
    certificate_data: str = msgspec.field(default="", name="client-certificate-data")
    key_file: str = msgspec.field(default="", name="client-key")
    key_data: str = msgspec.field(default="", name="client-key-data")
    username: str = ""
    password: str = ""
    exec: Exec | None = None
    auth_provider: AuthProvider | None = None
    as_user: str = msgspec.field(default="", name="as")
    as_uid: str = ""
    as_groups: tuple[str, ...] | None = None
    as_user_extra: dict[str, tuple[str, ...]] | None = None
    base: str = msgspec.field(default="", name="(folder)")

    def __repr__(self) -> str:
        return "User()"


class Context(msgspec.Struct, kw_only=True):
    """A named combination of cluster, user and namespace."""

    cluster: str = ""
    user: str = ""
    namespace: str = ""


class Kubeconfig(NamedTuple):
    """The content of one or several files, by name."""

    current_context: str
    contexts: Mapping[str, Context]
    clusters: Mapping[str, Cluster]
    users: Mapping[str, User]


class _NamedCluster(msgspec.Struct):
    name: str
    cluster: Cluster | None = None


class _NamedUser(msgspec.Struct):
    name: str
    user: User | None = None


class _NamedContext(msgspec.Struct):
    name: str
    context: Context | None = None


class _File(msgspec.Struct, rename="kebab"):
    current_context: str | None = None
    contexts: tuple[_NamedContext, ...] | None = None
    clusters: tuple[_NamedCluster, ...] | None = None
    users: tuple[_NamedUser, ...] | None = None


def parse(data: bytes, source: str, *, base: Path | None) -> Kubeconfig:
    """Parse one file. Paths in the file are relative to ``base``. Raise BadConfig."""
    try:
        loaded = document(data)
    except Refused as error:
        raise BadConfig(source, "", "", str(error)) from None
    except NotYaml as error:
        # The parser's message may hold text of the file, perhaps a key.
        at = f" (line {error.line})" if error.line else ""
        raise BadConfig(source, "", "", f"is no YAML{at}") from None
    if not isinstance(loaded, dict):
        raise BadConfig(source, "", "", "is no kubeconfig: not a mapping")
    try:
        file = msgspec.convert(loaded, _File)
    except (msgspec.ValidationError, RecursionError) as error:
        problem, _, where = str(error).partition(" - at ")
        field = where.strip("`").replace("`", "").removeprefix("$").removeprefix(".")
        raise BadConfig(source, "", field, problem) from None
    clusters: dict[str, Cluster] = {}
    users: dict[str, User] = {}
    found: dict[str, Context] = {}
    folder = str(base) if base is not None else ""
    for named_cluster in file.clusters or ():
        cluster = clusters.setdefault(named_cluster.name, named_cluster.cluster or Cluster())
        cluster.base = folder
    for named_user in file.users or ():
        user = users.setdefault(named_user.name, named_user.user or User())
        user.base = folder
    for named_context in file.contexts or ():
        found.setdefault(named_context.name, named_context.context or Context())
    return Kubeconfig(file.current_context or "", found, clusters, users)


def merged(configs: Sequence[Kubeconfig]) -> Kubeconfig:
    """Merge several files into one. The first entry with a name wins."""
    backwards = configs[::-1]
    return Kubeconfig(
        next((one.current_context for one in configs if one.current_context), ""),
        {name: value for one in backwards for name, value in one.contexts.items()},
        {name: value for one in backwards for name, value in one.clusters.items()},
        {name: value for one in backwards for name, value in one.users.items()},
    )
