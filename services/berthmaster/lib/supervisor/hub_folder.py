"""The folder of keys of an installed hub: the content, and the Secrets for each pod.

Example: `prepare(Path("/data"), url="tls://berth-nats.berth-system.svc:4222", names=[…])` creates
missing files and keeps existing ones::

    keys/             a key for each service, the operator and each tenant
    tls/              the authority of the bus and the servers' certificate
    connection.json   how `berth`, run next to the folder, finds the bus
    external.json     where agents in other clusters find the bus

`parts(folder)` returns the contents of the Secrets that the pods mount, see hub_keys.py.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

from berthmaster.lib.access.certificates import (
    CertificatesError,
    certificates_in,
    ensure_certificates,
)
from berthmaster.lib.access.keys import (
    CREDS_SUFFIX,
    SERVER_CONF,
    SIGNERS,
    creds_file,
    make_keys,
    removed_tenants,
)
from berthmaster.lib.access.permissions import SENTINEL, inbox_prefix
from berthmaster.lib.nats.subjects import token
from berthmaster.lib.supervisor.folder import (
    DEFAULT_TENANT,
    KEYS_FOLDER,
    TLS_FOLDER,
    ConnectionFile,
    FolderLock,
    write_connection,
    write_external,
)
from berthmaster.lib.supervisor.plan import LOGIN
from berthmaster.lib.supervisor.stack import OPERATOR, RESTORER, SETUP, external_url
from berthmaster.services import SERVICES

# own: Berthmaster's authority signs the certificate; given: cert-manager writes it into the folder.
CertificateSource = Literal["own", "given"]
USERS: Final = (
    *(
        row.name
        for row in SERVICES.values()
        if row.port and row.side in ("control", "hub") and row.name != LOGIN
    ),
    OPERATOR,
    RESTORER,
    SETUP,
)
BUS_SECRET: Final = "berth-bus"  # for nats-server
KEYS_SECRET: Final = "berth-hub-keys"  # for the hub's pod
SIGNERS_SECRET: Final = "berth-hub-signers"  # for the login service
CLEARING: Final = "clearing"  # the webhook, and its certificate in the folder
CLEARING_SECRET: Final = "berth-clearing"


def prepare(
    folder: Path,
    *,
    url: str,
    names: Sequence[str],
    external: Sequence[str] = (),
    monitors: Sequence[str] = (),
    tenants: Sequence[str] = (DEFAULT_TENANT,),
    login: bool = False,
    certificates: CertificateSource = "own",
    clearing: str = "",
) -> None:
    """Create missing files. Raises one of faults.FAULTS, or CertificatesError.

    ``url``: of the bus for services in the cluster. ``names``: of the bus servers in the cluster.
    ``external``: names and addresses for agents elsewhere. ``clearing``: name of the webhook.
    """
    folder = folder.absolute()
    with FolderLock(folder):
        keys = folder / KEYS_FOLDER
        wanted = {token(tenant) for tenant in tenants} - removed_tenants(keys)
        users = {*USERS, *(f"tenant.{tenant}" for tenant in wanted)}
        make_keys(keys, users | ({LOGIN, SENTINEL} if login else set()))
        renew_certificates(folder, [*external, *names], certificates, clearing)
        write_external(folder, external_url(external, url) or url)
        connection = ConnectionFile(
            url=url,
            tenant=tenants[0],
            creds_file=str(creds_file(keys, OPERATOR)),
            inbox_prefix=inbox_prefix(OPERATOR),
            ca_file=str(folder / TLS_FOLDER / "ca.crt"),
            monitors=tuple(monitors),
        )
        write_connection(folder, connection, {})


def renew_certificates(
    folder: Path, names: Sequence[str], source: CertificateSource, clearing: str
) -> None:
    """Create certificates that are missing or close to the expiry: of the NATS servers, and of the
    webhook ``clearing`` ("" = none). Raises CertificatesError.
    """
    tls = folder / TLS_FOLDER
    if source == "own":
        ensure_certificates(tls, names, now_s=time.time())
        if clearing:
            ensure_certificates(tls, [clearing], now_s=time.time(), server=CLEARING)
        return
    for name in ("ca.crt", "server.crt"):
        if not (tls / name).is_file():
            raise CertificatesError(f"{tls / name} is missing: cert-manager's Secret")


def parts(
    folder: Path, source: CertificateSource, clearing: str = ""
) -> Mapping[str, Mapping[str, bytes]]:
    """Return the contents of each Secret. Raises OSError."""
    keys, tls = folder / KEYS_FOLDER, folder / TLS_FOLDER
    files = certificates_in(tls)
    bus = {"accounts.conf": (keys / SERVER_CONF).read_bytes()}
    hub = {
        f"{user}{CREDS_SUFFIX}": creds_file(keys, user).read_bytes()
        for user in (*USERS, LOGIN)
        if user not in (OPERATOR, RESTORER, "accounts") and creds_file(keys, user).exists()
    }
    if source == "own":
        bus["ca.crt"] = hub["ca.crt"] = files.ca.read_bytes()
        bus["tls.crt"], bus["tls.key"] = files.certificate.read_bytes(), files.key.read_bytes()
    signers = {path.name: path.read_bytes() for path in (keys / SIGNERS).glob("*.json")}
    found = {BUS_SECRET: bus, KEYS_SECRET: hub, SIGNERS_SECRET: signers}
    if clearing and source == "own":
        pair = certificates_in(tls, CLEARING)
        found[CLEARING_SECRET] = {
            "tls.crt": pair.certificate.read_bytes(),
            "tls.key": pair.key.read_bytes(),
        }
    return found
