"""Prepares the data folder of a hub's pod, before the pod's other containers start.

Example: `python -m berthmaster.supervisor.hub_folder --data /data --external hub.example.com` makes
what is missing and leaves what is there::

    keys/               a key for each service, the operator and each tenant
    tls/                the bus's authority and the certificate of nats-server
    nats-server.conf    what nats-server is started with: TLS, accounts, where its messages are
    connection.json     how `berth`, run in this pod, finds the bus
    external.json       where agents in other clusters find the bus
    accounts/ jetstream/ memory/NAME/ usage/    folders of one container each

Each container mounts its own part of the folder and nothing else.
"""

import os
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, get_args

import click

from berthmaster.bus.certificates import CertificatesError, ensure_certificates
from berthmaster.bus.embedded import CONFIG_FILE, EVERYWHERE, ServerConfig, Sync, render_config
from berthmaster.bus.keys import creds_file, make_keys, removed_tenants, server_config, write_whole
from berthmaster.bus.permissions import SENTINEL, inbox_prefix
from berthmaster.bus.subjects import token
from berthmaster.supervisor.faults import FAULTS, fault_text
from berthmaster.supervisor.folder import (
    DEFAULT_TENANT,
    KEYS_FOLDER,
    TLS_FOLDER,
    ConnectionFile,
    FolderLock,
    write_connection,
    write_external,
)
from berthmaster.supervisor.plan import (
    HUB_ALSO,
    HUB_SERVICES,
    KARMADA,
    LOGIN,
    PIPELINE,
    REMEMBERING,
    USAGE_FOLDER,
)
from berthmaster.supervisor.stack import (
    MEMORY_FOLDER,
    OPERATOR,
    RESOLVER_FOLDER,
    RESTORER,
    SETUP,
    external_url,
)

PORT: Final = 4222
MONITOR_PORT: Final = 8222  # of nats-server's own health and figures, on loopback
SERVICE_NAME: Final = "berth-hub.berth-system.svc"
USERS: Final = (*PIPELINE, *HUB_SERVICES, *HUB_ALSO, KARMADA, OPERATOR, RESTORER, SETUP)


def prepare(
    folder: Path,
    *,
    external: Sequence[str] = (SERVICE_NAME,),
    tenants: Sequence[str] = (DEFAULT_TENANT,),
    login: bool = False,
    sync: Sync = "always",
    port: int = PORT,
    monitor_port: int = MONITOR_PORT,
) -> None:
    """Make what is missing. Raises one of faults.FAULTS, or CertificatesError."""
    folder = folder.absolute()
    with FolderLock(folder):
        keys = folder / KEYS_FOLDER
        wanted = {token(tenant) for tenant in tenants} - removed_tenants(keys)
        users = {*USERS, *(f"tenant.{tenant}" for tenant in wanted)}
        make_keys(keys, users | ({LOGIN, SENTINEL} if login else set()))
        files = ensure_certificates(folder / TLS_FOLDER, external, now_s=time.time())
        jetstream = folder / "jetstream"
        for made in (jetstream, folder / USAGE_FOLDER, *_memories(folder)):
            made.mkdir(parents=True, exist_ok=True)
        config = ServerConfig(
            host=EVERYWHERE,
            port=port,
            monitor_port=monitor_port,
            store_dir=jetstream,
            sync=sync,
            tls=(files.certificate, files.key),
            extra=server_config(keys, folder / RESOLVER_FOLDER),
        )
        write_whole(folder / CONFIG_FILE, render_config(config), mode=0o600)
        url = f"tls://127.0.0.1:{port}"
        write_external(folder, external_url(external, url))
        connection = ConnectionFile(
            url=url,
            tenant=tenants[0],
            creds_file=str(creds_file(keys, OPERATOR)),
            inbox_prefix=inbox_prefix(OPERATOR),
            ca_file=str(files.ca),
        )
        write_connection(folder, connection, {})


def _memories(folder: Path) -> Iterable[Path]:
    return (folder / MEMORY_FOLDER / service for service in REMEMBERING)


def _names(context: click.Context, option: click.Parameter, text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise click.BadParameter(f"{text!r} has an empty name; right is A or A,B")
    return names


@click.command()
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="BERTH_DATA",
    default=Path("/data"),
    show_default=True,
    help="Folder to prepare.",
)
@click.option(
    "--external",
    envvar="BERTH_HUB_EXTERNAL",
    default=SERVICE_NAME,
    show_default=True,
    callback=_names,
    metavar="A,B,…",
    help="Host names and addresses under which agents reach the bus; its certificate names them.",
)
@click.option(
    "--tenants",
    envvar="BERTH_HUB_TENANTS",
    default=DEFAULT_TENANT,
    show_default=True,
    callback=_names,
    metavar="A,B,…",
    help="Tenants that get a key.",
)
@click.option(
    "--login/--no-login",
    envvar="BERTH_HUB_LOGIN",
    default=False,
    help="Make the keys of the login service, too.",
)
@click.option(
    "--sync",
    type=click.Choice(get_args(Sync)),
    envvar="BERTH_HUB_SYNC",
    default="always",
    show_default=True,
    help="always: nats-server answers when the disk has a message; default: within two minutes.",
)
@click.option("--port", type=click.IntRange(1, 65535), default=PORT, show_default=True)
@click.option("--monitor-port", type=click.IntRange(1, 65535), default=MONITOR_PORT)
def main(
    data: Path,
    external: tuple[str, ...],
    tenants: tuple[str, ...],
    login: bool,
    sync: Sync,
    port: int,
    monitor_port: int,
) -> None:
    """Prepare the data folder of a hub's pod."""
    try:
        prepare(
            data,
            external=external,
            tenants=tenants,
            login=login,
            sync=sync,
            port=port,
            monitor_port=monitor_port,
        )
    except (*FAULTS, CertificatesError) as error:
        sys.stderr.write(f"the folder {data} cannot be prepared: {fault_text(error)}\n")
        sys.exit(os.EX_CONFIG)


if __name__ == "__main__":
    main()
