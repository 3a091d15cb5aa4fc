"""The named buses of a user, each with tenant and credentials file.

Rules of this file: the file is JSON, is replaced whole, and only its owner may read it. The file
names credentials files and never holds credentials.
"""

import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from berthmaster.cli.output.errors import did_you_mean

FILE: Final = "contexts.json"
MOST_BYTES: Final = 1 << 20
CURRENT: Final = "BERTH_CONTEXT"  # variable that names a context for a shell
_NAME: Final = re.compile(r"[A-Za-z0-9]([-._@A-Za-z0-9]{0,61}[A-Za-z0-9])?\Z")


class Context(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """One bus and the identity for it. Empty fields take the defaults without a context."""

    server: str
    tenant: str = ""
    queue: str = ""  # queue of jobs that `berth submit` builds from flags
    creds_file: str = ""
    ca_file: str = ""
    plaintext: bool = False  # True allows a remote server without TLS


class Contexts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    current: str = ""  # "" = no context is used
    contexts: dict[str, Context] = {}


class ContextsWrong(Exception):
    """The file is invalid, or has no such context. The text says what would be right."""


_FILE: Final = msgspec.json.Decoder(Contexts)


def config_folder(env: Mapping[str, str]) -> Path:
    """Return the user's configuration folder: XDG_CONFIG_HOME/berth, else ~/.config/berth."""
    base = env.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path(env.get("HOME") or Path.home()) / ".config") / "berth"


def load_contexts(folder: Path) -> Contexts:
    """Return the contexts, empty without a file. Raises ContextsWrong."""
    path = folder / FILE
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise ContextsWrong(f"cannot read {path}: {error.strerror}") from error
    try:
        found = _FILE.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ContextsWrong(f"{path} cannot be read: {error}; mend or remove it") from error
    if found.current and found.current not in found.contexts:
        raise ContextsWrong(f"{path}: current is {found.current!r}, which is none of its contexts")
    return found


def save_contexts(folder: Path, contexts: Contexts) -> Path:
    """Replace the file. Raises ContextsWrong."""
    path = folder / FILE
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, name = tempfile.mkstemp(prefix=".contexts-", dir=folder)  # with mode 0600
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(contexts), indent=2) + b"\n")
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ContextsWrong(f"cannot write {path}: {error.strerror}") from error
    return path


def named(contexts: Contexts, name: str) -> Context:
    """Return a context by name. Raises ContextsWrong, naming the known contexts."""
    found = contexts.contexts.get(name)
    if found is None:
        there = ", ".join(sorted(contexts.contexts)) or "none; `berth context set NAME` makes one"
        hint = did_you_mean(name, contexts.contexts)
        raise ContextsWrong(f"there is no context {name!r}{hint}; there are: {there}")
    return found


def with_context(contexts: Contexts, name: str, given: Mapping[str, Any]) -> Contexts:
    """Return the contexts with one added, or with the given fields of one changed.

    The first context is used at once. Raises ContextsWrong.
    """
    if not _NAME.match(name):
        raise ContextsWrong(f"{name!r} is no name; right is up to 63 letters, digits, - . _ and @")
    had = contexts.contexts.get(name)
    if had is None and not given.get("server"):
        raise ContextsWrong(f"--server is missing: {name} is new, and where is its bus?")
    made = Context(**given) if had is None else msgspec.structs.replace(had, **given)
    return Contexts(
        current=contexts.current or ("" if contexts.contexts else name),
        contexts={**contexts.contexts, name: made},
    )


def without(contexts: Contexts, name: str) -> Contexts:
    """Return the contexts without one. Raises ContextsWrong."""
    named(contexts, name)
    left = {key: each for key, each in contexts.contexts.items() if key != name}
    return Contexts(current="" if contexts.current == name else contexts.current, contexts=left)
