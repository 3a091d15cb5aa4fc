"""`berth context show`: the bus of the commands, the user, and the end of the credentials."""

import time
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec

from berthmaster.cli.session import Session, bus_command


class Identity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The server and the identity of the commands."""

    server: str
    source: str  # origin of the server's address
    tenant: str
    queue: str = ""  # queue of jobs submitted by flags
    user: str = ""  # of the credentials; "" = no credentials
    account: str = ""  # public key of the user's account
    creds_file: str = ""
    ends: str = ""  # "" = never, or no credentials
    answered_ms: float = 0.0


@click.command()
@bus_command
async def show(session: Session) -> None:
    """Show the bus, the tenant, the user and the expiry of the credentials in use."""
    from berthmaster.cli.output.terminal import plain_table, safe

    target = session.target
    user, account, ends = _credentials(target.creds_file)
    async with session.client() as berth:
        began_s = time.monotonic()
        await berth.hello()
        answered_ms = round((time.monotonic() - began_s) * 1000, 1)
    found = Identity(
        server=target.url,
        source=target.source,
        tenant=target.tenant,
        queue=target.queue,
        user=user,
        account=account,
        creds_file=target.creds_file,
        ends=ends,
        answered_ms=answered_ms,
    )
    table = plain_table("", "")
    table.show_header = False
    table.columns[0].style = "bold"
    rows = {
        "tenant": found.tenant,
        "queue": found.queue,
        "user": found.user or "none: without credentials",
        "ends": found.ends or ("never" if user else ""),
        "key": found.creds_file,
        "server": f"{found.server}, from {found.source}",
        "gateway": f"answered in {found.answered_ms:g} ms",
    }
    for name, value in rows.items():
        if value:
            table.add_row(name, safe(value))
    session.out.document(found, lambda: table)


def _credentials(path: str) -> tuple[str, str, str]:
    """Return user, account and end of a credentials file, without its secret. Raises BerthError."""
    from berthmaster.client import BerthError
    from berthmaster.lib.nats import jwts

    if not path:
        return "", "", ""
    try:
        body = jwts.decoded(jwts.parse_creds(Path(path).read_text()).jwt)
    except OSError as error:
        raise BerthError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise BerthError(f"{path}: {error}") from None
    ends = ""
    if isinstance(exp := body.get("exp"), int | float):
        ends = datetime.fromtimestamp(exp, UTC).isoformat(timespec="seconds")
    account = body["nats"].get("issuer_account") or body.get("iss", "")
    return str(body.get("name", "")), str(account), ends
