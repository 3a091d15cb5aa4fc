"""`berth up --login`: a person and an agent come in by tokens of others, and are handed no key."""

import asyncio
import contextlib
import json
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.jwts import parse_creds
from berthmaster.lib.runtime.ports import free_ports
from tests.bus.logins import AUDIENCE, OidcProvider, ReviewingApi
from tests.bus.tools import Lines, Settings, story
from tests.pipeline.running import berth_up, environment, run_berth
from tests.support.containers import Running
from tests.support.patience import ANSWER_S, hang_s, wait_until

EMPTY = {"type": "api.workloads.v1"}


def mapping(provider: OidcProvider, api: ReviewingApi, kubeconfig: Path) -> dict[str, Any]:
    people = {"kind": "oidc", "name": "people", "issuer": provider.url, "audience": AUDIENCE}
    berlin = {"kind": "kubernetes", "name": "berlin", "issuer": api.ISSUER, "audience": AUDIENCE}
    agent = {"service_account": "berth-system/berth-agent", "cluster": "berlin"}
    rule = {"claim": "sub", "value": "ann", "tenant": "default"}
    return {
        "issuers": [
            people | {"rules": [rule]},
            berlin | {"rules": [agent], "kubeconfig": str(kubeconfig)},
        ]
    }


@contextlib.contextmanager
def logging_in(home: Path, data: dict[str, str]) -> Iterator[Running]:
    """The container `login` of an agent's pod, with what `berth cluster add --login` made."""
    [port] = free_ports(1)
    log = home / "login.log"
    env = environment(home) | {
        "BERTH_AGENT_LOGIN_CLUSTER": data["cluster"],
        "BERTH_AGENT_LOGIN_SENTINEL_FILE": str(home / "sentinel.creds"),
        "BERTH_AGENT_LOGIN_TOKEN_FILE": str(home / "pod-token"),
        "BERTH_AGENT_LOGIN_CREDS_FILE": str(home / "agent.creds"),
        "BERTH_NATS_URL": data["url"],
        "BERTH_NATS_CA_FILE": str(home / "ca.crt"),
        "BERTH_HTTP_PORT": str(port),
    }
    argv = [sys.executable, "-m", "berthmaster.lib.access.agent_login"]
    with log.open("wb") as output:
        process = subprocess.Popen(argv, env=env, stdout=output, stderr=output)
    try:
        yield Running("login", process, port, log)
    finally:
        process.kill()
        process.wait(hang_s())


@story
async def test_a_person_and_an_agent_log_in_and_nothing_secret_is_handed_to_them(
    tmp_path: Path,
) -> None:
    async with OidcProvider() as provider, ReviewingApi() as api:
        file = tmp_path / "mapping.json"
        file.write_text(json.dumps(mapping(provider, api, api.kubeconfig(tmp_path / "kube"))))
        await asyncio.to_thread(lives, tmp_path, file, provider.token(exp=2**31), api)


def lives(home: Path, file: Path, token: str, api: ReviewingApi) -> None:
    flags = ("--services", "gateway,accounts,door", "--external", "localhost", "--login", str(file))
    with contextlib.ExitStack() as owned:
        up = owned.enter_context(berth_up(home / "berth", *flags))
        mine = home / "tenant.default.creds"
        (home / "token").write_text(f"{token}\n")
        asked = ("login", "--tenant", "default", "--creds-file", str(mine))
        told = up.json(*asked, "--token-file", str(home / "token"))
        assert told == {"user": "tenant.default", "file": str(mine), "ends": told["ends"]}
        assert stat.S_IMODE(mine.stat().st_mode) == 0o600
        first = parse_creds(mine.read_text())
        where = ("--server", up.view["url"], "--ca-file", up.view["ca_file"])
        listed = run_berth("jobs", *where, "--creds-file", str(mine), "--json", home=home)
        assert (listed.returncode, json.loads(listed.stdout)) == (0, EMPTY), listed.stderr
        written_ns = mine.stat().st_mtime_ns
        # Again, for the same key, by a program that prints the token.
        up.json(*asked, "--token-command", f"cat {home / 'token'}")
        again = parse_creds(mine.read_text())
        assert again.seed == first.seed
        assert mine.stat().st_mtime_ns > written_ns  # within one second it may say the same

        signed = ("--creds-file", f"{up.folder}/keys/tenant.default.creds")
        by_file = ("--token-file", str(home / "token"))
        refused: tuple[tuple[tuple[str, ...], str], ...] = (
            ((*asked, "--token-command", "echo forged"), "it is no JSON Web Token"),
            ((*asked, "--token-command", "false"), "it ended with 1"),
            (("login", "--cluster", "berlin", *by_file), "no rule gives cluster berlin"),
            ((*asked[:3], *signed, *by_file), "a person signed"),
        )
        for argv, why in refused:
            done = up.berth(*argv)
            assert done.returncode != 0
            assert why in done.stderr
            assert token not in done.stderr
        assert parse_creds(mine.read_text()) == again

        secret = yaml.safe_load(up.berth("cluster", "add", "berlin", "--login", "--stdout").stdout)
        data = secret["stringData"]
        assert "agent.creds" not in data
        for name in ("sentinel.creds", "ca.crt"):
            (home / name).write_text(data[name])
        (home / "pod-token").write_text(api.token("berth-system/berth-agent", AUDIENCE))
        login = owned.enter_context(logging_in(home, data))
        wait_until(lambda: login.is_ready, "the login service takes the pod's token")
        # With what the container wrote, another one of the pod connects as the cluster's agent.
        settings = Settings(data["url"], home / "agent.creds", data["inbox"], home / "ca.crt")

        async def seen() -> list[dict[str, Any]]:
            opening = Connection.open(
                settings, "agent", Lines(), timeout_s=ANSWER_S, clock_subject=""
            )
            async with await opening:
                listed: list[dict[str, Any]] = await asyncio.to_thread(up.json, "cluster", "list")
                return listed

        [berlin] = asyncio.run(seen())
        assert (berlin["cluster"], berlin["connected"]) == ("berlin", True)
        assert login.end() == 0
        said = login.log.read_text() + (up.folder / "logs" / "login.log").read_text()
        assert (home / "pod-token").read_text() not in said
        assert token not in said
