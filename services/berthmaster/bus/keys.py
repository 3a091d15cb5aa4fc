"""Makes the nkeys of the bus's users and the server configuration that knows them.

A folder holds, for each user, its seed (`<user>.nk`, mode 0600, the only secret) and for the server
`users.conf` (public keys and permissions). Seeds that are there stay: adding a user changes nobody
else's. A seed is never shown: not printed, not logged, not put into an error.

    python -m berthmaster.bus.keys FOLDER [--user tenant.acme]… [--owner UID]
"""

import argparse
import os
import secrets
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import nkeys

from berthmaster.bus.permissions import SERVICES, UnknownUser, grants, render

DEFAULT_USERS: Final = (*SERVICES, "operator", "tenant.default")
USERS_CONF: Final = "users.conf"
SEED_SUFFIX: Final = ".nk"


class KeysError(Exception):
    """A folder or a file in it is not what it should be; the text names it."""


def seed_file(folder: Path, user: str) -> Path:
    """Where a user's seed is."""
    return folder / f"{user}{SEED_SUFFIX}"


def make_keys(
    folder: Path, users: Iterable[str] = DEFAULT_USERS, *, owner_uid: int | None = None
) -> Mapping[str, str]:
    """Make what is missing; every user of the folder with its public key.

    ``owner_uid``: who shall be able to read the seeds, if that is not whoever calls this (a
    container's user, say); only root can give files away. Raises UnknownUser and KeysError.
    """
    wanted = sorted(set(users))
    for user in wanted:
        grants(user)  # raises for a name that means nothing, before anything is written
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for user in wanted:
            _make_seed(seed_file(folder, user), owner_uid)
        public = _render_users(folder)
        if owner_uid is not None:
            os.chown(folder, owner_uid, -1)
    except OSError as error:
        raise KeysError(f"{error.filename or folder}: {error.strerror}") from error
    return public


def remove_key(folder: Path, user: str) -> bool:
    """Forget a user; whether there was one. The server must then read its users again. Raises
    KeysError."""
    path = seed_file(folder, user)
    try:
        if not path.exists():
            return False
        path.unlink()
        _render_users(folder)
    except OSError as error:
        raise KeysError(f"{error.filename or folder}: {error.strerror}") from error
    return True


def public_keys(folder: Path) -> dict[str, str]:
    """Every user of the folder with its public key. Raises KeysError, OSError."""
    there = sorted(folder.glob(f"*{SEED_SUFFIX}"))
    return {path.name.removesuffix(SEED_SUFFIX): _public_key(path) for path in there}


def _render_users(folder: Path) -> dict[str, str]:
    public = public_keys(folder)
    _write(folder / USERS_CONF, render(public), mode=0o644)
    return public


def _make_seed(path: Path, owner_uid: int | None) -> None:
    if not path.exists():
        raw = bytearray(secrets.token_bytes(32))
        seed: bytes = nkeys.encode_seed(bytes(raw), nkeys.PREFIX_BYTE_USER)
        _write(path, seed.decode() + "\n", mode=0o600)
    if owner_uid is not None:
        os.chown(path, owner_uid, -1)


def _write(path: Path, text: str, mode: int) -> None:
    """Whole or not at all, and never readable by others in between."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
        os.fchmod(file.fileno(), mode)
        file.write(text)
    fresh.replace(path)


def _public_key(path: Path) -> str:
    try:
        pair = nkeys.from_seed(path.read_bytes().strip())
        key: bytes = pair.public_key
        pair.wipe()
    except OSError:
        raise
    except Exception:  # noqa: BLE001 # the library raises its own, binascii's and others
        raise KeysError(f"{path} holds no nkey seed of a user (those begin with SU)") from None
    return key.decode()


def main(argv: Sequence[str]) -> int:
    """The command line; says what it made, without a secret."""
    parser = argparse.ArgumentParser(
        prog="python -m berthmaster.bus.keys", description="nkeys and permissions for the bus"
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--user",
        action="append",
        default=[],
        metavar="NAME",
        help=f"one more user, such as tenant.acme; always there: {', '.join(DEFAULT_USERS)}",
    )
    parser.add_argument("--owner", type=int, metavar="UID", help="who may read the seeds")
    args = parser.parse_args(argv)
    try:
        made = make_keys(args.folder, [*DEFAULT_USERS, *args.user], owner_uid=args.owner)
    except (UnknownUser, KeysError) as error:
        sys.stderr.write(f"keys: {error}\n")
        return 2
    sys.stdout.write(f"{args.folder / USERS_CONF}: {len(made)} users: {', '.join(sorted(made))}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
