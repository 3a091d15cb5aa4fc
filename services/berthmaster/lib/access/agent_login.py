"""Renews the credentials of an agent's pod by login: `python -m
berthmaster.lib.access.agent_login`.

The container `login` of an agent with worker.login runs the module. The container sends the pod's
token to the login service, and writes the credentials to a file for the pod's other containers. A
renewal follows before the credentials expire. /readyz shows whether credentials are available.
"""

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from berthmaster.lib.access.token_login import keep_logged_in, log_in, read_token
from berthmaster.lib.nats.jwts import Creds
from berthmaster.lib.runtime.service import Context, Service, run
from berthmaster.lib.runtime.settings import CommonSettings, required, setting

NAME: Final = "agent-login"


@dataclass(frozen=True, kw_only=True)
class AgentLoginSettings(CommonSettings):
    """Cluster, token and destination of the credentials."""

    cluster: str = required(help="name of this cluster, equal to its MultiKueueCluster on the hub")
    sentinel_file: Path = setting(
        Path("/etc/berth/sentinel.creds"),
        help="sentinel.creds of the bus, which permits only requests to the login service",
    )
    token_file: Path = setting(
        Path("/var/run/secrets/berth/token"),
        help=(
            "file with the pod's token, read again at each login; its audience must be the one "
            "in the login service's mapping"
        ),
    )
    creds_file: Path = setting(
        Path("/run/berth/agent.creds"), help="credentials file, written atomically"
    )


async def main(ctx: Context[AgentLoginSettings]) -> None:
    """Log in, and again before the credentials expire, until the service stops."""
    settings = ctx.settings
    failing = ctx.metrics.gauge("failing", "1 while logins fail")

    async def login(seed: str) -> Creds:
        token = await asyncio.to_thread(read_token, settings.token_file)
        return await log_in(
            settings, settings.sentinel_file, token, ctx.log, seed=seed, cluster=settings.cluster
        )

    def report(trouble: str) -> None:
        failing.set(bool(trouble))
        ctx.health.ready("login", not trouble, trouble)
        if trouble:
            ctx.log.warning("login failed", why=trouble)
        else:
            ctx.log.info("logged in")

    ctx.health.ready("login", False, "not logged in yet")
    await keep_logged_in(login, settings.creds_file, ctx.stopping, report=report)


SERVICE: Final = Service(NAME, AgentLoginSettings, main)

if __name__ == "__main__":
    run(SERVICE, sys.argv[1:])
