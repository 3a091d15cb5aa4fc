"""`berth login`: credentials in exchange for a token of an identity provider."""

import asyncio
import os
import random
import shlex
import subprocess
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import click
import msgspec

from berthmaster.cli.context.file import config_folder
from berthmaster.cli.context.target import BusTarget, inbox_of
from berthmaster.cli.session import Output, run, target_of, usage

T = TypeVar("T")
COMMAND_LIMIT_S = 120.0  # seconds; a user may have to act in a browser
TOKEN_VARIABLE = "BERTH_LOGIN_TOKEN"  # name of the variable with the token
SENTINEL = "sentinel.creds"


class LoggedIn(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a login, without a secret."""

    user: str
    file: str
    ends: str


@click.command()
@click.option(
    "--server",
    metavar="URL",
    help="Address of the NATS server. [default: BERTH_NATS_URL, else a running `berth up`]",
)
@click.option("--context", metavar="NAME", help="Context of `berth context list`.")
@click.option("--tenant", metavar="NAME", help="Tenant to log in as. [default: BERTH_TENANT]")
@click.option(
    "--cluster", metavar="NAME", help="Log in as the agent of this worker cluster instead."
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File with the identity token.",
)
@click.option(
    "--token-command",
    metavar="COMMAND",
    help=f"Program that prints the identity token. [default: the token in {TOKEN_VARIABLE}]",
)
@click.option(
    "--sentinel",
    type=click.Path(path_type=Path),
    envvar="BERTH_SENTINEL_FILE",
    metavar="FILE",
    help=f"{SENTINEL} of the bus. [default: BERTH_SENTINEL_FILE, else that of a `berth up`]",
)
@click.option(
    "--creds-file",
    type=click.Path(path_type=Path),
    envvar="BERTH_NATS_CREDS_FILE",
    metavar="FILE",
    help=(
        "Credentials file to write. [default: BERTH_NATS_CREDS_FILE, else "
        "~/.config/berth/USER.creds]"
    ),
)
@click.option("--ca-file", metavar="FILE", help="Certificate authority of a tls:// server.")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Data folder of the `berth up`.",
)
@click.option(
    "--keep",
    is_flag=True,
    help="Keep running and renew the credentials before they expire, until Ctrl-C.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def login(
    server: str | None,
    context: str | None,
    tenant: str | None,
    cluster: str | None,
    token_file: Path | None,
    token_command: str | None,
    sentinel: Path | None,
    creds_file: Path | None,
    ca_file: str | None,
    data: Path | None,
    keep: bool,
    as_json: bool,
) -> None:
    """Get credentials for a token: an OIDC ID token, or a ServiceAccount's.

    The credentials go to a file with mode 0600. Other commands read the file named by
    BERTH_NATS_CREDS_FILE. The private key never leaves this machine.
    """
    from berthmaster.lib.nats.subjects import SubjectError, token

    if tenant and cluster:
        usage("either --tenant or --cluster")
    if token_file and token_command:
        usage("either --token-file or --token-command")
    target = target_of(
        server=server, context=context, tenant=tenant, creds_file=None, ca_file=ca_file, data=data
    )
    try:
        user = f"agent.{token(cluster)}" if cluster else f"tenant.{token(target.tenant)}"
    except SubjectError as error:
        usage(str(error))
    path = creds_file or config_folder(os.environ) / f"{user}.creds"
    if inbox_of(str(path)) != f"_INBOX.{user}":
        usage(f"--creds-file {path}: right is a name {user}.creds, which says whose inbox it has")
    beside = Path(target.creds_file).with_name(SENTINEL) if target.creds_file else None
    sentinel = sentinel or beside
    if sentinel is None or not sentinel.is_file():
        usage(f"--sentinel is missing: the file {SENTINEL} that your operator publishes")
    output = Output(as_json=as_json)
    source = _token_source(token_file, token_command)
    account = {"cluster": cluster} if cluster else {"tenant": target.tenant}
    work = _login(output, target, user, path, sentinel, source, account, keep=keep)
    sys.exit(run(work, output, target))


def _token_source(file: Path | None, command: str | None) -> Callable[[], str]:
    """Return a function that gets the token, again at each call. Raises BusError when called."""
    from berthmaster.lib.access.token_login import read_token
    from berthmaster.lib.nats.errors import BusError

    def by_command(argv: list[str]) -> str:
        try:
            done = subprocess.run(
                argv, stdout=subprocess.PIPE, text=True, check=True, timeout=COMMAND_LIMIT_S
            )
        except subprocess.TimeoutExpired:
            raise BusError(f"--token-command: no end within {COMMAND_LIMIT_S:g} s") from None
        except subprocess.CalledProcessError as error:
            raise BusError(f"--token-command: it ended with {error.returncode}") from None
        except (OSError, UnicodeDecodeError) as error:
            raise BusError(f"--token-command: {argv[0]}: {type(error).__name__}") from None
        return done.stdout.strip()

    if file is not None:
        return lambda: read_token(file)
    if command is not None:
        try:
            argv = shlex.split(command)
        except ValueError as error:
            usage(f"--token-command: {error}")
        if not argv:
            usage("--token-command: is empty")
        return lambda: by_command(argv)
    found = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not found:
        usage(f"no token: --token-file, --token-command or {TOKEN_VARIABLE}")
    return lambda: found


async def _login(
    output: Output,
    target: BusTarget,
    user: str,
    path: Path,
    sentinel: Path,
    source: Callable[[], str],
    account: dict[str, str],
    *,
    keep: bool,
) -> int:
    from berthmaster.client import BerthError
    from berthmaster.lib.access.token_login import (
        LoginTarget,
        keep_logged_in,
        log_in,
        renew_in_s,
        write_creds,
    )
    from berthmaster.lib.nats import jwts
    from berthmaster.lib.nats.jwts import Creds
    from berthmaster.lib.runtime.log import Log

    settings = LoginTarget(
        target.url, None, "", Path(target.ca_file) if target.ca_file else None, target.plaintext
    )
    log = Log("berth", level="error", format="text")

    async def once(seed: str) -> Creds:
        token = await asyncio.to_thread(source)
        return await log_in(settings, sentinel, token, log, seed=seed or had, **account)

    def shown(creds: Creds) -> None:
        ends = datetime.fromtimestamp(jwts.decoded(creds.jwt)["exp"], UTC)
        got = LoggedIn(user=user, file=str(path), ends=ends.isoformat(timespec="seconds"))
        output.item(got, lambda: f"{user} until {got.ends}: export BERTH_NATS_CREDS_FILE={path}")

    had = _seed_of_before(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        creds = await _told(once(had))
        write_creds(path, creds)
    except OSError as error:
        raise BerthError(f"{error.filename or path}: {error.strerror}") from error
    shown(creds)
    if keep:
        had = creds.seed
        await asyncio.sleep(renew_in_s(creds.jwt, random.random))

        async def again(seed: str) -> Creds:
            made = await once(seed)
            shown(made)
            return made

        def report(trouble: str) -> None:
            if trouble:
                output.say(f"berth: {trouble}; tried again")

        await keep_logged_in(again, path, asyncio.Event(), report=report)
    return 0


async def _told(work: Awaitable[T]) -> T:
    """Await a login, and convert its errors: a refused login is no trouble with the bus."""
    from berthmaster.cli.audit.commands import read
    from berthmaster.client import BerthError, UnavailableError
    from berthmaster.lib.access.token_login import LoginRefused

    try:
        return await read(work)
    except UnavailableError as error:
        if isinstance(error.__cause__, LoginRefused):
            raise BerthError(str(error)) from error
        raise


def _seed_of_before(path: Path) -> str:
    """Return the key of an earlier login, for reuse; "" = none.

    Raises BerthError for a file that no login has written, because its credentials may last longer.
    """
    from berthmaster.client import BerthError
    from berthmaster.lib.nats import jwts

    try:
        had = jwts.parse_creds(path.read_text())
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        raise BerthError(f"{path} is there and cannot be used: {error}") from None
    if "issuer_account" not in jwts.decoded(had.jwt)["nats"]:
        raise BerthError(
            f"{path} holds credentials that a person signed: name another --creds-file"
        )
    return had.seed
