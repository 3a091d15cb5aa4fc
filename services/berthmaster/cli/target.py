"""Which bus to talk to, and as whom: flags, then environment, then a `berth up` on this machine."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from berthmaster.bus.permissions import UnknownUser, grants, inbox_prefix
from berthmaster.supervisor.folder import (
    CONNECTION_FILE,
    DATA_FOLDER,
    DEFAULT_TENANT,
    ConnectionFile,
    state_file,
)

CREDS_SUFFIX: Final = ".creds"  # as in bus/keys.py, which needs a library that not everybody has
DEFAULT_URL: Final = "nats://127.0.0.1:4222"
MAX_PARENTS: Final = 20
_FILE: Final = msgspec.json.Decoder(ConnectionFile)


@dataclass(frozen=True, kw_only=True)
class BusTarget:
    """Where to connect."""

    url: str
    tenant: str
    creds_file: str
    inbox_prefix: str
    source: str  # for people: where this came from
    ca_file: str = ""  # "" = what the system trusts, should the URL be a tls:// one
    plaintext: bool = False  # whether another machine's server may be without TLS


def find_target(
    *,
    server: str | None,
    tenant: str | None,
    creds_file: str | None,
    data: Path | None,
    ca_file: str | None = None,
    env: Mapping[str, str],
    cwd: Path,
) -> BusTarget:
    """The target: each part from its flag, its variable, or the connection file, in this order.

    A server that was named keeps the file's tenant and credentials out: they belong to another
    bus. Where the bus knows its users each has an inbox of its own; a file of credentials that is
    named after its user, as ours are, says which.
    """
    url = server or env.get("BERTH_NATS_URL")
    found = None if url else find_connection(data, env, cwd)
    known = found[1] if found else None
    named = data or env.get("BERTH_DATA")
    if url:
        source = "--server" if server else "BERTH_NATS_URL"
    else:
        nowhere = f"no `berth up` runs on {named}" if named else "no `berth up` was found here"
        source = str(found[0]) if found else f"the default; {nowhere}"
    creds = creds_file or env.get("BERTH_NATS_CREDS_FILE") or ""
    inbox = env.get("BERTH_INBOX_PREFIX") or inbox_of(creds)
    return BusTarget(
        url=url or (known.url if known else DEFAULT_URL),
        tenant=tenant or env.get("BERTH_TENANT") or (known.tenant if known else DEFAULT_TENANT),
        creds_file=creds or (known.creds_file if known else ""),
        inbox_prefix=inbox or (known.inbox_prefix if known else "_INBOX"),
        ca_file=ca_file or env.get("BERTH_NATS_CA_FILE") or (known.ca_file if known else ""),
        plaintext=env.get("BERTH_NATS_PLAINTEXT", "").lower() == "true",
        source=source,
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
        except (OSError, msgspec.DecodeError):
            continue
    return None


def _last_started(env: Mapping[str, str]) -> Path | None:
    path = state_file(env)
    try:
        return Path(path.read_text().strip()) if path is not None else None
    except OSError:
        return None
