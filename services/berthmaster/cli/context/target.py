"""The bus and identity of a command: from flags, variables, a context, or a running `berth up`."""

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

CREDS_SUFFIX: Final = ".creds"  # as in lib/access/keys.py, which needs an optional library
DEFAULT_URL: Final = "nats://127.0.0.1:4222"
MAX_PARENTS: Final = 20
_FILE: Final = msgspec.json.Decoder(ConnectionFile)


@dataclass(frozen=True, kw_only=True)
class BusTarget:
    url: str
    tenant: str
    creds_file: str
    inbox_prefix: str
    source: str  # origin of the address, for users
    ca_file: str = ""  # "" = the system's CAs, for a tls:// URL
    plaintext: bool = False  # True allows a remote server without TLS
    queue: str = ""  # default queue of jobs submitted by flags

    @property
    def is_tenant(self) -> bool:
        """Return whether the credentials are a tenant's, with access to its own jobs only."""
        return self.inbox_prefix.startswith(("_INBOX.tenant.", "_INBOX.viewer."))


def tenants_beside(creds_file: str) -> list[str]:
    """Return the tenants whose credentials are in the same folder.

    Only an operator has such a folder, and may know the tenants.
    """
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
    """Return the target: each part from its flag, its variable, or the source of the server.

    The source is the first of: ``--server``, ``--context``, ``--data``, the variables
    BERTH_NATS_URL, BERTH_CONTEXT, BERTH_DATA, the used context, a connection file near the working
    folder. For a named server, the tenant and credentials of other sources are ignored, because
    they belong to another bus. On a bus with users, each user has its own inbox. A credentials file
    named after its user, as Berthmaster's are, determines the inbox. Raises ContextsWrong.
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
    """Return the target without flags or variables for single parts."""
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
    """Return the inbox prefix of the user in a file name; "" = the name is no user's."""
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
    """Return the connection file of a `berth up`.

    The file is in the named folder, in .berth here or in a parent folder, or in the folder of the
    user's last start.
    """
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
