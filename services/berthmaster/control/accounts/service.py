"""The accounts service: compare the servers' accounts with the folder of keys, and push changes.

Comparisons happen at the start, after a reconnection, after a change of the folder, and every ten
minutes. The service reads the folder of keys and never writes there.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from berthmaster.lib.access.account_push import NO_CLOCK, reconcile
from berthmaster.lib.access.keys import KeysError, account_jwts, accounts_state, first_end
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import BusError
from berthmaster.lib.nats.service_connection import connected
from berthmaster.lib.runtime.errors import CannotStart
from berthmaster.lib.runtime.periodic import beats
from berthmaster.lib.runtime.service import Context, Service
from berthmaster.lib.runtime.settings import CommonSettings, required

NAME: Final = "accounts"
SOON_S: Final = 7 * 86_400.0
COMPARE_EVERY_S: Final = 600.0  # without changes
LOOK_S: Final = 1.0  # between two checks of the folder for changes


@dataclass(frozen=True, kw_only=True)
class AccountsSettings(CommonSettings):
    keys_dir: Path = required(help="folder of keys, created by `berth up` or deploy/keys")


class Shell:
    def __init__(self, ctx: Context[AccountsSettings], conn: Connection) -> None:
        self._ctx = ctx
        self._conn = conn
        self._done_for: object = None  # the folder's state, and the number of reconnections
        self._due_s = 0.0
        self._told = ""
        gauge, counter = ctx.metrics.gauge, ctx.metrics.counter
        self._known = gauge("known", "Accounts in the folder of keys")
        self._first_end = gauge(
            "first_end_timestamp_seconds", "Expiry of the first credentials in the folder"
        )
        self._failing = gauge("failing", "1 while accounts cannot be pushed to the servers")
        self._changes = counter("changes", "Accounts pushed to the servers", ("change",))

    async def run(self) -> None:
        """Run until the service stops."""
        settings = self._ctx.settings
        self._ctx.health.ready(NAME, False, "servers have not been looked at yet")
        async for _ in beats(LOOK_S, self._ctx.stopping):
            self._ctx.health.ready("bus", self._conn.connected, "no connection to NATS")
            if not self._conn.connected:
                continue
            try:
                await self._compare_if_due(settings)
                self._tell("")
            except (BusError, KeysError, OSError) as error:
                self._tell(str(error))

    async def _compare_if_due(self, settings: AccountsSettings) -> None:
        state = (accounts_state(settings.keys_dir), self._conn.reconnects)
        if state == self._done_for and self._conn.now() < self._due_s:
            return
        changes = await reconcile(self._conn, settings.keys_dir)
        if changes:
            self._ctx.log.info("accounts pushed", pushed=changes.pushed, deleted=changes.deleted)
        self._changes.labels("pushed").inc(len(changes.pushed))
        self._changes.labels("deleted").inc(len(changes.deleted))
        self._known.set(len(account_jwts(settings.keys_dir)))
        self._look_for_ends(settings.keys_dir)
        self._done_for = state
        self._due_s = self._conn.now() + COMPARE_EVERY_S

    def _look_for_ends(self, folder: Path) -> None:
        """Warn in time before credentials expire, because only operators renew credentials."""
        if (first := first_end(folder)) is None:
            self._first_end.set(math.inf)
            return
        ends_s, user = first
        self._first_end.set(ends_s)
        if ends_s - self._conn.now() < SOON_S:
            self._ctx.log.warning(
                "credentials expire soon",
                user=user,
                left_h=round((ends_s - self._conn.now()) / 3600, 1),
                help="berth tenant renew, berth cluster renew",
            )

    def _tell(self, trouble: str) -> None:
        """Log each new fault once, because every check repeats the try."""
        self._failing.set(bool(trouble))
        self._ctx.health.ready(NAME, not trouble, trouble)
        if trouble and trouble != self._told:
            self._ctx.log.error("accounts comparison failed", why=trouble)
        self._told = trouble


async def main(ctx: Context[AccountsSettings]) -> None:
    """Run until the service stops. Raises CannotStart without a folder of keys."""
    if not (ctx.settings.keys_dir / "accounts").is_dir():
        raise CannotStart(f"--keys-dir {ctx.settings.keys_dir} is no folder of keys")
    async with connected(ctx, clock_subject=NO_CLOCK) as conn:
        if conn is not None:
            await Shell(ctx, conn).run()


SERVICE: Final = Service(NAME, AccountsSettings, main)
