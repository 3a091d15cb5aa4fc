"""A folder of keys: the operator's, the accounts', and one credentials file for each user.

    operator.seed             signs accounts; the owner controls the bus
    login/NAME.json           if the login service runs: for each tenant's and cluster's account, a
                              key that signs users with the permissions in the account's JWT
    accounts/NAME.seed, .jwt  STREAMS, CORE, SYS, the separate ones (permissions.py), T_<tenant> for
                              each tenant, C_<cluster> for each worker cluster, LOGIN if the login
                              service runs; .removed = a former .jwt, kept for the revocations
    <user>.creds              JWT and seed of a user, for connections
    accounts.conf             for the server: public keys and JWTs, nothing secret

Only the owner can read these files, except the last one. Existing files stay: a new user changes no
file of other users. A JWT is signed again only when the content changes (a newer version permits
other subjects). A seed is never shown: not printed, not logged, not put into an error.

    python -m berthmaster.lib.access.keys FOLDER [--user tenant.acme]… [--owner UID]
"""

import argparse
import json
import os
import secrets
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from berthmaster.lib.access import claims
from berthmaster.lib.access.claims import CORE, LOGIN, STREAMS, SYSTEM, Scope
from berthmaster.lib.access.permissions import (
    APART,
    SENTINEL,
    SERVICES,
    VIEWS,
    UnknownUser,
    account_of,
    grants,
    grants_of,
)
from berthmaster.lib.nats import jwts
from berthmaster.lib.nats.jwts import ClaimsError, Creds, Kind, decoded
from berthmaster.lib.nats.subjects import text

DEFAULT_USERS: Final = (*SERVICES, "operator", "tenant.default")
SERVER_CONF: Final = "accounts.conf"
CREDS_SUFFIX: Final = ".creds"
SIGNERS: Final = "login"  # folder of signers, for the login service
DAY_S: Final = 86_400.0
_ACCOUNTS: Final = "accounts"
_OPERATOR: Final = "operator.seed"
_KINDS: Final = {claims.TENANT: "tenant", claims.CLUSTER: "cluster"}


class Signer(NamedTuple):
    """A key that signs users of one account, with the permissions in the account's JWT."""

    account: str  # public key
    seed: str


class KeysError(Exception):
    """A folder or a file in it is invalid. The text names the path."""


class WasRemoved(KeysError):
    """A tenant or cluster of this name was removed. Jobs, histories, facts and Secrets still have
    the name, so a new key for the name could read or report them.
    """

    def __init__(self, account: str) -> None:
        kind, name = _KINDS[account[:2]], text(account[2:])
        does = {
            "tenant": "reads the jobs, history and Secrets of that one",
            "cluster": "takes over the jobs and facts of that one, and may report how they end",
        }
        super().__init__(
            f"{kind} {name!r} was removed before, and a new key {does[kind]}: "
            f"`berth {kind} add {name} --again` if it is the same {kind}, else another name"
        )


def creds_file(folder: Path, user: str) -> Path:
    return folder / f"{user}{CREDS_SUFFIX}"


def make_keys(
    folder: Path, users: Iterable[str] = DEFAULT_USERS, *, owner_uid: int | None = None
) -> Mapping[str, str]:
    """Create missing keys and update existing ones. Return every user of the folder with the public
    key.

    A removed tenant or cluster stays removed, see ``WasRemoved``. ``owner_uid``: another owner of
    all files (a container's user, say); only root can change owners. Raises UnknownUser, KeysError,
    and its subclass WasRemoved.
    """
    wanted = sorted(set(users))
    for user in wanted:
        grants(user)  # raises for an unknown name, before anything is written
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        keys = _Keys(folder)
        there = sorted(public_keys(folder))
        if SENTINEL in {*there, *wanted}:
            keys.signers.mkdir(exist_ok=True, mode=0o700)
        for name in dict.fromkeys([*claims.ALWAYS, *map(account_of, [*there, *wanted])]):
            keys.account(name)
        for user in dict.fromkeys([*there, *wanted]):
            keys.user(user)
        keys.write_server_conf()
        if owner_uid is not None:
            for path in (folder, *folder.rglob("*")):
                os.chown(path, owner_uid, -1)
        return public_keys(folder)
    except OSError as error:
        raise KeysError(f"{error.filename or folder}: {error.strerror}") from error


def sign_user(folder: Path, user: str, *, days: float, again: bool = False) -> Creds:
    """Return credentials of a new or existing user, valid for ``days``.

    ``again``: a removed tenant or cluster returns as the same one. Raises UnknownUser, KeysError,
    and its subclass WasRemoved.
    """
    grants(user)
    try:
        keys = _Keys(folder)
        keys.account(account_of(user), again=again)
        made = keys.user(user, ends_s=time.time() + days * DAY_S)
        keys.write_server_conf()
    except OSError as error:
        raise KeysError(f"{error.filename or folder}: {error.strerror}") from error
    return made


def remove_user(folder: Path, user: str) -> bool:
    """Remove a user and revoke the credentials. Return whether the user existed.

    A tenant's or cluster's account is removed with the last user. Servers must then be updated (see
    account_push.py). Raises KeysError.
    """
    path = creds_file(folder, user)
    try:
        if not path.exists():
            return False
        keys = _Keys(folder)
        name = account_of(user)
        others = {account_of(each) for each in public_keys(folder) if each != user}
        if name in {*claims.ALWAYS, *others}:
            keys.account(name, revoke=_public_key(path))
        else:
            keys.account(name, revoke="*")
            jwt = folder / _ACCOUNTS / f"{name}.jwt"
            jwt.replace(jwt.with_suffix(".removed"))
            (keys.signers / f"{name}.json").unlink(missing_ok=True)
        path.unlink()
        keys.write_server_conf()
    except OSError as error:
        raise KeysError(f"{error.filename or folder}: {error.strerror}") from error
    return True


def public_keys(folder: Path) -> dict[str, str]:
    """Return every user of the folder with the public key. Raises KeysError, OSError."""
    there = sorted(folder.glob(f"*{CREDS_SUFFIX}"))
    return {path.name.removesuffix(CREDS_SUFFIX): _public_key(path) for path in there}


def account_jwts(folder: Path) -> dict[str, str]:
    """Return every account with the JWT. Raises OSError."""
    return _jwts(folder, ".jwt")


def removed_accounts(folder: Path) -> dict[str, str]:
    """Return every removed account, with a JWT that accepts no user. Raises OSError."""
    return _jwts(folder, ".removed")


def removed_tenants(folder: Path) -> set[str]:
    """Return the removed tenants without those added again, as tokens."""
    removed = (folder / _ACCOUNTS).glob(f"{claims.TENANT}*.removed")
    return {path.stem.removeprefix(claims.TENANT) for path in removed}


def _jwts(folder: Path, suffix: str) -> dict[str, str]:
    there = sorted((folder / _ACCOUNTS).glob(f"*{suffix}"))
    return {path.stem: path.read_text().strip() for path in there}


def accounts_state(folder: Path) -> object:
    """Return a value that changes when an account is created, changed or removed. Raises
    OSError.
    """
    there = (path for kind in ("jwt", "removed") for path in (folder / _ACCOUNTS).glob(f"*.{kind}"))
    return frozenset((path.name, path.stat().st_mtime_ns) for path in there)


def first_end(folder: Path) -> tuple[float, str] | None:
    """Return when the first JWT of a user expires, and the user. Raises KeysError, OSError."""
    users = {path: _read_creds(path).jwt for path in folder.glob(f"*{CREDS_SUFFIX}")}
    ends = [(decoded(jwt).get("exp"), path.stem) for path, jwt in users.items()]
    return min(((ends_s, user) for ends_s, user in ends if ends_s), default=None)


def deletion(folder: Path, name: str) -> str:
    """Return the request that deletes an account from a server. Raises KeysError."""
    signer = _seed(folder / _OPERATOR, "operator")
    body = claims.deletion(jwts.public_key(signer), account_key(folder, name))
    return jwts.signed(body, signer, now_s=time.time())


def account_key(folder: Path, name: str) -> str:
    """Return the public key of an account. A server stores the account's data under the key. Raises
    KeysError.
    """
    return _seed_key(folder / _ACCOUNTS / f"{name}.seed")


def signer(signers: Path, account: str) -> Signer | None:
    """Return the key that signs users of an account; None = unknown account. Raises KeysError."""
    path = signers / f"{account}.json"
    try:
        found = json.loads(path.read_text())
        jwts.public_key(found["seed"])
        return Signer(str(found["account"]), found["seed"])
    except FileNotFoundError:
        return None
    except OSError as error:
        raise KeysError(f"{path}: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError):
        raise KeysError(f"{path} holds no key that signs users") from None


def server_config(folder: Path, resolver: Path) -> str:
    """Return a server's configuration of accounts. ``resolver``: the server's folder for account
    JWTs, filled with the current JWTs. Raises KeysError.
    """
    keys = {decoded(jwt)["sub"]: jwt for jwt in account_jwts(folder).values()}
    try:
        resolver.mkdir(parents=True, exist_ok=True, mode=0o700)
        for stale in {path.stem for path in resolver.glob("*.jwt")} - set(keys):
            (resolver / f"{stale}.jwt").unlink()
        for key, jwt in keys.items():
            (resolver / f"{key}.jwt").write_text(jwt)
    except OSError as error:
        raise KeysError(f"{error.filename or resolver}: {error.strerror}") from error
    return _server_conf(folder, claims.ALWAYS) + resolver_block(resolver)


def resolver_block(resolver: Path) -> str:
    """Return the configuration of the server's folder of accounts, with deletion permitted."""
    return f'resolver {{ type: full, dir: "{resolver}", allow_delete: true, interval: "2m" }}\n'


def _server_conf(folder: Path, names: Iterable[str]) -> str:
    accounts = account_jwts(folder)
    preloaded = [f"  {decoded(accounts[name])['sub']}: {accounts[name]}" for name in names]
    lines = [
        "# Rendered by berthmaster/lib/access/keys.py; changes here are lost.",
        f"operator: {(folder / 'operator.jwt').read_text().strip()}",
        f"system_account: {account_key(folder, SYSTEM)}",
        "resolver_preload {",
        *preloaded,
        "}",
    ]
    return "\n".join(lines) + "\n"


class _Keys:
    """Signs the JWTs of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._accounts = folder / _ACCOUNTS
        self._accounts.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.signers = folder / SIGNERS
        self._operator = _seed(folder / _OPERATOR, "operator")
        body = claims.operator(jwts.public_key(self._operator), system=self._key(SYSTEM))
        _sign(folder / "operator.jwt", body, self._operator, time.time())

    def _seed(self, name: str) -> str:
        return _seed(self._accounts / f"{name}.seed", "account")

    def _key(self, name: str) -> str:
        return jwts.public_key(self._seed(name))

    def revocations(self, name: str) -> dict[str, int]:
        """Return the revocations of an account, also of a removed account."""
        path = self._accounts / f"{name}.jwt"
        for each in (path, path.with_suffix(".removed")):
            if each.exists():
                return dict(_decoded(each, each.read_text().strip())["nats"].get("revocations", {}))
        return {}

    def account(self, name: str, *, revoke: str = "", again: bool = False) -> None:
        """Create or update an account. ``revoke``: public key of a user, "*" = all.

        Raises WasRemoved unless ``again`` is True for a removed tenant or cluster that returns.
        """
        removed = self._accounts / f"{name}.removed"
        if not again and name[:2] in _KINDS and removed.exists():
            raise WasRemoved(name)
        revocations = self.revocations(name)
        if revoke:
            # After the last revocation: a user who returned within the second was signed a second
            # later.
            revocations[revoke] = max(int(time.time()), revocations.get(revoke, 0) + 1)
        key = self._key(name)
        kind, part = name[:2], name[2:]
        scope = self._scope(name, key) if revoke != "*" else None
        shared = {each: self._key(each) for each in claims.ALWAYS}
        streams, core = shared[STREAMS], shared[CORE]
        if name == STREAMS:
            body = claims.streams(key, revocations=revocations)
        elif name == CORE:
            body = claims.core(shared, revocations=revocations)
        elif users := APART.get(name):
            allowed = grants_of(users)
            body = claims.apart(
                key,
                name,
                keys=shared,
                publish=allowed.publish,
                subscribe=allowed.subscribe,
                limits=claims.VIEW_LIMITS if users[0] in VIEWS else claims.SERVICE_LIMITS,
                revocations=revocations,
            )
        elif name == SYSTEM:
            body = claims.system(key, core=core)
        elif name == LOGIN:
            body = claims.login(key, signer=shared[claims.SIGNER], revocations=revocations)
        elif kind == claims.TENANT:
            body = claims.tenant(
                key, part, core=core, streams=streams, revocations=revocations, scope=scope
            )
        else:
            body = claims.cluster(key, part, core=core, revocations=revocations, scope=scope)
        jwt, now_s = removed.with_suffix(".jwt"), time.time()
        if removed.exists():
            # A server ignores a JWT identical to that of a deleted account.
            now_s = max(now_s, _decoded(removed, removed.read_text().strip())["iat"] + 1)
        _sign(jwt, body, self._operator, now_s)
        removed.unlink(missing_ok=True)

    def _scope(self, name: str, account: str) -> Scope | None:
        """Return the scope that the login service may sign for; None without a login service or
        tenant or cluster account.
        """
        role = {claims.TENANT: "tenant", claims.CLUSTER: "agent"}.get(name[:2])
        if role is None or not self.signers.is_dir():
            return None
        if (had := signer(self.signers, name)) is None:
            had = Signer(account, jwts.new_seed("account", secrets.token_bytes(32)))
            write_whole(self.signers / f"{name}.json", json.dumps(had._asdict()), mode=0o600)
        allowed = grants(f"{role}.{name[2:]}")
        return Scope(jwts.public_key(had.seed), allowed.publish, allowed.subscribe)

    def user(self, user: str, *, ends_s: float | None = None) -> Creds:
        """Create a user, or sign it again. ``ends_s``: None = unchanged, or never for a new
        user.
        """
        path = creds_file(self.folder, user)
        had = _read_creds(path) if path.exists() else None
        seed = had.seed if had else jwts.new_seed("user", secrets.token_bytes(32))
        account = account_of(user)
        signer = self._seed(account)
        key = jwts.public_key(seed)
        allowed = grants(user)
        body = claims.user(key, user, publish=allowed.publish, subscribe=allowed.subscribe)
        if had is not None and ends_s is None:
            jwt_claims = decoded(had.jwt)
            if jwts.says(had.jwt, body) and jwt_claims.get("iss") == jwts.public_key(signer):
                return had
            ends_s = jwt_claims.get("exp")
        revoked = self.revocations(account)
        since = max(revoked.get("*", 0), revoked.get(key, 0))
        now_s = max(time.time(), since + 1)  # JWTs signed within the second are revoked too
        made = Creds(jwts.signed(body, signer, now_s=now_s, ends_s=ends_s), seed)
        write_whole(path, jwts.creds_text(made), mode=0o600)
        return made

    def write_server_conf(self) -> None:
        """Write the configuration with every account, for a server without access to this
        folder.
        """
        names = account_jwts(self.folder)
        write_whole(self.folder / SERVER_CONF, _server_conf(self.folder, names), mode=0o644)


def _sign(path: Path, body: dict[str, Any], signer: str, now_s: float) -> None:
    """Write a signed JWT, unless the file already has the same content."""
    if path.exists():
        had = path.read_text().strip()
        if jwts.says(had, body | {"iss": jwts.public_key(signer)}):
            return
    write_whole(path, jwts.signed(body, signer, now_s=now_s) + "\n", mode=0o600)


def _seed(path: Path, kind: Kind) -> str:
    """Return the seed in a file, created if missing."""
    if not path.exists():
        write_whole(path, jwts.new_seed(kind, secrets.token_bytes(32)) + "\n", mode=0o600)
    seed = path.read_text().strip()
    try:
        jwts.public_key(seed)
    except ClaimsError as error:
        raise KeysError(f"{path} holds {error}") from None
    return seed


def _seed_key(path: Path) -> str:
    try:
        return jwts.public_key(path.read_text().strip())
    except ClaimsError as error:
        raise KeysError(f"{path} holds {error}") from None
    except OSError as error:
        raise KeysError(f"{path}: {error.strerror}") from error


def _decoded(path: Path, jwt: str) -> dict[str, Any]:
    try:
        return decoded(jwt)
    except ClaimsError as error:
        raise KeysError(f"{path} holds {error}") from None


def _read_creds(path: Path) -> Creds:
    try:
        return jwts.parse_creds(path.read_text())
    except (ClaimsError, UnicodeDecodeError) as error:
        why = error if isinstance(error, ClaimsError) else "no text"
        raise KeysError(f"{path} holds {why}") from None


def _public_key(path: Path) -> str:
    return jwts.public_key(_read_creds(path).seed)


def write_whole(path: Path, text: str, mode: int) -> None:
    """Write the file completely or not at all, and never readable by others in between."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
        os.fchmod(file.fileno(), mode)
        file.write(text)
    fresh.replace(path)


def main(argv: Sequence[str]) -> int:
    """Run the command line. The output names the created users, without secrets."""
    parser = argparse.ArgumentParser(
        prog="python -m berthmaster.lib.access.keys",
        description=("folder for accounts and users of the bus"),
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--user",
        action="append",
        default=[],
        metavar="NAME",
        help=f"another user to create, such as tenant.acme; always created: "
        f"{', '.join(DEFAULT_USERS)}",
    )
    parser.add_argument("--owner", type=int, metavar="UID", help="group that may read secret files")
    args = parser.parse_args(argv)
    try:
        made = make_keys(args.folder, [*DEFAULT_USERS, *args.user], owner_uid=args.owner)
    except (UnknownUser, KeysError) as error:
        sys.stderr.write(f"keys: {error}\n")
        return 2
    sys.stdout.write(f"{args.folder / SERVER_CONF}: {len(made)} users: {', '.join(sorted(made))}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
