"""The accounts service on a real server: what it puts right by itself, and what it says of it."""

import shutil
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest

from berthmaster.control.accounts.service import AccountsSettings, main
from berthmaster.lib.access.keys import creds_file, remove_user, sign_user
from berthmaster.lib.access.permissions import inbox_prefix
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.errors import BusError
from berthmaster.lib.runtime.errors import CannotStart
from berthmaster.lib.runtime.service import Context
from berthmaster.lib.supervisor.embedded import Server, ServerConfig
from tests.bus.shells import running
from tests.bus.tools import Lines, Settings, accounts_of, eventually, story
from tests.support.patience import ANSWER_S, until

USERS = ("setup", "gateway", "accounts", "tenant.acme")


class Bus(NamedTuple):
    server: Server
    keys: Path

    @property
    def resolver(self) -> Path:
        return self.keys.parent / "accounts"

    @asynccontextmanager
    async def user(self, name: str) -> AsyncIterator[Connection]:
        settings = Settings(self.server.url, creds_file(self.keys, name), inbox_prefix(name))
        async with await Connection.open(
            settings, name, Lines(), timeout_s=ANSWER_S, clock_subject=""
        ) as conn:
            yield conn

    @asynccontextmanager
    async def service(self) -> AsyncIterator[Context[AccountsSettings]]:
        settings = AccountsSettings(
            nats_url=self.server.url,
            nats_creds_file=creds_file(self.keys, "accounts"),
            inbox_prefix=inbox_prefix("accounts"),
            http_port=-1,
            keys_dir=self.keys,
        )
        with mock.patch("berthmaster.control.accounts.service.LOOK_S", 0.05):
            async with running("accounts", settings, main) as ctx:
                await until(lambda: not waiting(ctx))
                yield ctx


def waiting(ctx: Context[Any]) -> str:
    """What is not ready."""
    ready, why = ctx.health.readiness()
    return "" if ready else str(why)


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Bus]:
    keys = tmp_path / "keys"
    config = ServerConfig(sync="default", extra=accounts_of(keys, USERS))
    with Server(tmp_path / "nats", config) as server:
        yield Bus(server, keys)


@story
async def test_who_is_added_or_removed_in_the_folder_is_so_on_the_servers(bus: Bus) -> None:
    async with bus.service() as ctx:
        sign_user(bus.keys, "tenant.late", days=1)

        async def comes_in() -> bool:
            async with bus.user("tenant.late") as late:
                return late.connected

        await eventually(comes_in)
        first = ctx.metrics.gauge("first_end_timestamp_seconds", "")
        await until(lambda: abs(first._value.get() - time.time() - 86_400) < 60)
        async with bus.user("tenant.late") as late:
            remove_user(bus.keys, "tenant.late")
            await until(lambda: not late.connected, "it is cut off")


@story
async def test_a_server_that_lost_its_accounts_gets_them_again(bus: Bus) -> None:
    async with bus.service() as ctx, bus.user("gateway") as gateway:
        bus.server.kill()
        shutil.rmtree(bus.resolver)
        bus.resolver.mkdir()
        bus.server.start()
        await until(lambda: gateway.connected, "CORE is in the server's configuration")

        async def comes_in() -> bool:
            async with bus.user("tenant.acme") as acme:
                return acme.connected

        await eventually(comes_in)
        pushed = ctx.metrics.counter("changes", "Accounts pushed to the servers", ("change",))
        # The tenant's and setup's; CORE, STREAMS and SYS are in the server's configuration.
        await until(lambda: pushed.labels("pushed")._value.get() == 2)


@story
async def test_accounts_with_wrong_folder_report_and_recover(bus: Bus) -> None:
    async with bus.service() as ctx:
        seed = bus.keys / "accounts" / "T_acme.seed"
        right = seed.read_text()
        seed.write_text("SUHUNTER2")
        sign_user(bus.keys, "tenant.late", days=1)
        await until(lambda: "T_acme.seed holds no nkey seed" in waiting(ctx))
        assert "HUNTER2" not in waiting(ctx)
        seed.write_text(right)
        await until(lambda: not waiting(ctx))


@story
async def test_a_folder_that_is_none_is_told_at_once(bus: Bus, tmp_path: Path) -> None:
    settings = AccountsSettings(nats_url=bus.server.url, http_port=-1, keys_dir=tmp_path / "none")
    with pytest.raises((CannotStart, BusError), match=r"none is no folder of keys"):
        async with running("accounts", settings, main):
            pass
