"""Which bus to talk to, and as whom: by flags, variables, a context, or a `berth up` that runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from berthmaster.cli.context.file import CURRENT, Context, config_folder, load_contexts, named
from berthmaster.lib.access.permissions import UnknownUser, grants, inbox_prefix
from berthmaster.lib.nats.subjects import text
from berthmaster.lib.supervisor.folder import (
    CONNECTION_FILE,
    DATA_FOLDER,
    DEFAULT_TENANT,
    ConnectionFile,
    state_file,
)

CREDS_SUFFIX: Final = (
    ".creds"  # as in lib/access/keys.py, which needs a library that not everybody has
)
DEFAULT_URL: Final = "nats://127.0.0.1:4222"
MAX_PARENTS: Final = 20
_FILE: Final = msgspec.json.Decoder(ConnectionFile)


@dataclass(frozen=True, kw_only=True)
class BusTarget:
    url: str
    tenant: str
    creds_file: str
    inbox_prefix: str
    source: str  # for people: where this came from
    ca_file: str = ""  # "" = what the system trusts, should the URL be a tls:// one
    plaintext: bool = False  # whether another machine's server may be without TLS
    queue: str = ""  # of what is submitted by flags that name none

    @property
    def is_tenant(self) -> bool:
        """Whether the credentials are one tenant's, who may ask and hear of its own jobs only."""
        return self.inbox_prefix.startswith(("_INBOX.tenant.", "_INBOX.viewer."))


def tenants_beside(creds_file: str) -> list[str]:
    """Those whose credentials are in the folder of these: an operator's, who may know them."""
    if not creds_file:
        return []
    found = Path(creds_file).parent.glob(f"tenant.*{CREDS_SUFFIX}")
    names = (path.name.removeprefix("tenant.").removesuffix(CREDS_SUFFIX) for path in found)
    return sorted(map(text, names))


def find_target(
    *,
    server: str | None,
    tenant: str | None,
    creds_file: str | None,
    data: Path | None,
    ca_file: str | None = None,
    context: str | None = None,
    env: Mapping[str, str],
    cwd: Path,
) -> BusTarget:
    """The target: each part from its flag, its variable, or from where the server is known by.

    That is the first of: ``--server``, ``--context``, ``--data``, the variables BERTH_NATS_URL,
    BERTH_CONTEXT, BERTH_DATA, the context that is used, a connection file found here. A server that
    was named keeps everything else's tenant and credentials out: they belong to another bus. Where
    the bus knows its users each has an inbox of its own; a file of credentials that is named after
    its user, as ours are, says which. Raises ContextsWrong.
    """
    known = _known(server, context, data, env, cwd)
    creds = creds_file or env.get("BERTH_NATS_CREDS_FILE") or ""
    inbox = env.get("BERTH_INBOX_PREFIX") or inbox_of(creds)
    return BusTarget(
        url=known.url,
        tenant=tenant or env.get("BERTH_TENANT") or known.tenant,
        creds_file=creds or known.creds_file,
        inbox_prefix=inbox or known.inbox_prefix,
        ca_file=ca_file or env.get("BERTH_NATS_CA_FILE") or known.ca_file,
        plaintext=env.get("BERTH_NATS_PLAINTEXT", "").lower() == "true" or known.plaintext,
        source=known.source,
        queue=known.queue,
    )


def _known(
    server: str | None,
    context: str | None,
    data: Path | None,
    env: Mapping[str, str],
    cwd: Path,
) -> BusTarget:
    """What is known without a flag or variable of its own for each part."""
    if server:
        return _bare(server, "--server")
    if context:
        return _of_context(context, "--context", env)
    if data is None:
        if url := env.get("BERTH_NATS_URL"):
            return _bare(url, "BERTH_NATS_URL")
        if name := env.get(CURRENT):
            return _of_context(name, CURRENT, env)
        if not env.get("BERTH_DATA") and (name := load_contexts(config_folder(env)).current):
            return _of_context(name, "`berth context use`", env)
    return _of_up(data, env, cwd)


def _bare(url: str, source: str) -> BusTarget:
    return BusTarget(
        url=url, tenant=DEFAULT_TENANT, creds_file="", inbox_prefix="_INBOX", source=source
    )


def _of_context(name: str, source: str, env: Mapping[str, str]) -> BusTarget:
    found: Context = named(load_contexts(config_folder(env)), name)
    return BusTarget(
        url=found.server,
        tenant=found.tenant or DEFAULT_TENANT,
        creds_file=found.creds_file,
        inbox_prefix=inbox_of(found.creds_file) or "_INBOX",
        source=f"the context {name}, {source}",
        ca_file=found.ca_file,
        plaintext=found.plaintext,
        queue=found.queue,
    )


def _of_up(data: Path | None, env: Mapping[str, str], cwd: Path) -> BusTarget:
    found = find_connection(data, env, cwd)
    if found is None:
        named_folder = data or env.get("BERTH_DATA")
        nowhere = "no `berth up` was found here"
        if named_folder:
            nowhere = f"no `berth up` runs on {named_folder}"
        return _bare(DEFAULT_URL, f"the default; {nowhere}")
    path, file = found
    return BusTarget(
        url=file.url,
        tenant=file.tenant,
        creds_file=file.creds_file,
        inbox_prefix=file.inbox_prefix,
        source=str(path),
        ca_file=file.ca_file,
    )


def inbox_of(creds_file: str) -> str:
    """The inbox prefix of the user that a file is named after; "" if it is no user's name."""
    path = Path(creds_file)
    if path.suffix != CREDS_SUFFIX:
        return ""
    try:
        grants(path.stem)
    except UnknownUser:
        return ""
    return inbox_prefix(path.stem)


def find_connection(
    data: Path | None, env: Mapping[str, str], cwd: Path
) -> tuple[Path, ConnectionFile] | None:
    """The connection file of a `berth up`: of the folder that was named, of .berth here or in a
    parent folder, or of the last one that this user has started."""
    named = data or (Path(env["BERTH_DATA"]) if env.get("BERTH_DATA") else None)
    if named is not None:
        folders = [named]
    else:
        folders = [parent / DATA_FOLDER for parent in [cwd, *cwd.parents][:MAX_PARENTS]]
        if last := _last_started(env):
            folders.append(last)
    for folder in folders:
        path = folder / CONNECTION_FILE
        try:
            return path, _FILE.decode(path.read_bytes())
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            continue
    return None


def _last_started(env: Mapping[str, str]) -> Path | None:
    path = state_file(env)
    try:
        return Path(path.read_text().strip()) if path is not None else None
    except OSError:
        return None
