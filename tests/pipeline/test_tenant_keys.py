"""`berth tenant`: tenants are let in and shut out while everything runs."""

import asyncio
import contextlib
import stat
import time
from datetime import datetime
from pathlib import Path

import pytest

from berthmaster.client import Client, NotAllowedError
from berthmaster.lib.access.permissions import inbox_prefix
from berthmaster.lib.messages.workload import JobRequest
from berthmaster.lib.nats.jwts import parse_creds
from tests.bus.tools import story
from tests.pipeline.running import Up, alive, berth_up, run_berth
from tests.support.patience import ANSWER_S, until


def client(up: Up, tenant: str, creds: Path) -> Client:
    return Client.connect(
        up.view["url"],
        tenant=tenant,
        creds_file=creds,
        inbox_prefix=inbox_prefix(f"tenant.{tenant}"),
        timeout_s=ANSWER_S,
    )


@story
async def test_a_tenant_is_let_in_renewed_and_shut_out_and_nobody_else_notices(
    tmp_path: Path,
) -> None:
    with contextlib.ExitStack() as owned:
        folder = tmp_path / "berth"
        up = await asyncio.to_thread(
            owned.enter_context, berth_up(folder, "--services", "gateway,accounts")
        )

        async def berth(*argv: str) -> object:
            return await asyncio.to_thread(up.json, "tenant", *argv)

        creds = up.folder / "keys" / "tenant.acme.creds"
        added = await berth("add", "acme")
        assert isinstance(added, dict)
        ends = added["ends"]
        assert added == {"tenant": "acme", "file": str(creds), "ends": ends, "server_told": True}
        assert round((datetime.fromisoformat(ends).timestamp() - time.time()) / 86_400) == 30
        assert stat.S_IMODE(creds.stat().st_mode) == 0o600
        before = parse_creds(creds.read_text())
        stolen = tmp_path / "stolen.creds"
        stolen.write_bytes(creds.read_bytes())
        async with (
            client(up, "acme", creds) as acme,
            client(up, "default", up.folder / "keys" / "tenant.default.creds") as other,
        ):
            await acme.submit(JobRequest(id="mine"))
            assert (await acme.get("mine")).workload.tenant == "acme"
            assert (await other.list()).workloads == ()
            renewed = await berth("renew", "acme", "--days", "60")
            assert isinstance(renewed, dict)
            after = parse_creds(creds.read_text())
            assert (before.seed == after.seed, renewed["ends"] > ends) == (True, True)
            listed = await berth("list")
            assert isinstance(listed, list)
            assert {one["tenant"]: (one["connected"], one["ends"]) for one in listed} == {
                "acme": (True, renewed["ends"]),
                "default": (True, ""),
            }

            assert await berth("remove", "acme") == {"tenant": "acme", "server_told": True}
            await until(lambda: not acme.connection.connected, "it is cut off")
            assert (await other.list()).workloads == ()
            assert (other.connection.connected, other.connection.reconnects) == (True, 0)
        with pytest.raises(NotAllowedError, match="refuses this user"):
            async with client(up, "acme", stolen):
                pass
        assert all(alive(pid) for pid in up.pids().values())
        logs = "".join(path.read_text() for path in up.folder.rglob("*.log"))
        assert "reconnected" not in logs
        assert before.seed not in logs

    # What is said of a bus that is stopped, and of what cannot be.
    at = ("--data", str(folder))
    for argv, code, said in (
        (("add", "late"), 0, "No server runs on this folder now: it learns of it when it starts."),
        (("add", "late"), 1, "tenant 'late' has a key already; `berth tenant renew` prolongs it"),
        (("renew", "acme"), 1, "no tenant 'acme' has a key here; those that have: default, late"),
        (("add", "acme"), 1, "tenant 'acme' was removed before, and a new key reads the jobs"),
        (("add", "acme", "--again"), 0, "acme may connect until"),
        (("add", ""), 1, "an empty name cannot stand in a subject"),
        (("add", "x", "--days", "0"), 2, "0 is not in the range 0<x<=3650"),
    ):
        done = await asyncio.to_thread(run_berth, "tenant", *argv, *at, home=tmp_path)
        assert (done.returncode, said in done.stdout + done.stderr) == (code, True), done
