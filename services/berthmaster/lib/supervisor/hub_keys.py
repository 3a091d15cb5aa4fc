"""Keeps the folder of keys of an installed hub, and copies the parts to the pods' Secrets.

The container `keys` of the pod berth-accounts runs `python -m berthmaster.lib.supervisor.hub_keys`.
The service creates the folder, writes Secrets, and compares both every ten seconds. Example: an
account of `berth tenant add`, or a renewed certificate, is in the Secret soon after. The chart
creates the Secrets empty. The service may patch but not read them. Where the clearing webhook runs,
the service writes the authority into the webhook's configuration too.
"""

import asyncio
import base64
import hashlib
import json
import os
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from berthmaster.lib.access.certificates import CertificatesError, certificates_in
from berthmaster.lib.kueue.names import CLEARING_CONFIGURATION, CLEARING_WEBHOOK
from berthmaster.lib.runtime.errors import CannotStart
from berthmaster.lib.runtime.periodic import beats
from berthmaster.lib.runtime.service import Context, Service, run
from berthmaster.lib.runtime.settings import CommonSettings, required, setting
from berthmaster.lib.supervisor.faults import FAULTS, fault_text
from berthmaster.lib.supervisor.folder import DEFAULT_TENANT, TLS_FOLDER
from berthmaster.lib.supervisor.hub_folder import (
    CLEARING_SECRET,
    CertificateSource,
    parts,
    prepare,
    renew_certificates,
)

NAME: Final = "hub"
COMPARE_EVERY_S: Final = 10.0
WRITE_AGAIN_S: Final = 600.0  # the Secrets may have been changed meanwhile
CALL_LIMIT_S: Final = 10.0
TOKEN_FOLDER: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class PublishFailed(Exception):
    """The API server refused an object. The text names the object and the reason."""


@dataclass(frozen=True, kw_only=True)
class HubKeysSettings(CommonSettings):
    """The folder and the content."""

    data: Path = setting(Path("/data"), help="folder of keys and certificates")
    names: tuple[str, ...] = required(
        help="names of the NATS servers in this cluster, for their certificate"
    )
    external: tuple[str, ...] = setting(
        (),
        help="host names and addresses of the bus for agents in other clusters, for its "
        "certificate",
    )
    monitors: tuple[str, ...] = setting(
        (), help="http://HOST:PORT of each server, where `berth cluster list` reads connections"
    )
    tenants: tuple[str, ...] = setting((DEFAULT_TENANT,), help="tenants that get keys")
    login: bool = setting(False, help="also create the keys of the login service")
    certificates: CertificateSource = setting(
        "own",
        help=(
            "own: Berthmaster's own authority signs the servers' certificate; given: "
            "cert-manager's certificate is in the folder"
        ),
    )
    clearing: str = setting(
        "",
        help="host name of the clearing webhook (`berth serve clearing`), for its certificate; "
        "empty = no webhook",
    )


@dataclass(frozen=True)
class ApiServer:
    """The API server of the pod's cluster."""

    url: str
    folder: Path  # token, authority and namespace

    @classmethod
    def of_pod(cls) -> "ApiServer":
        """Return the API server of this pod. Raises CannotStart outside a pod."""
        host = os.environ.get("KUBERNETES_SERVICE_HOST", "")
        port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not host or not (TOKEN_FOLDER / "token").exists():
            raise CannotStart(f"this is no pod with a token in {TOKEN_FOLDER}")
        return cls(f"https://{f'[{host}]' if ':' in host else host}:{port}", TOKEN_FOLDER)

    def write(self, name: str, data: Mapping[str, bytes]) -> None:
        """Replace the data of Berthmaster's field manager in the Secret, or the authority in the
        webhook's configuration. Raises PublishFailed.
        """
        encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
        if name == CLEARING_CONFIGURATION:
            hook = {"name": CLEARING_WEBHOOK, "clientConfig": {"caBundle": encoded["ca.crt"]}}
            self._apply(
                "admissionregistration.k8s.io/v1",
                "MutatingWebhookConfiguration",
                "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
                {"metadata": {"name": name}, "webhooks": [hook]},
            )
            return
        try:
            namespace = (self.folder / "namespace").read_text().strip()
        except OSError as error:
            raise PublishFailed(f"Secret {name}: {error}") from error
        path = f"/api/v1/namespaces/{namespace}/secrets"
        meta = {"name": name, "namespace": namespace}
        self._apply("v1", "Secret", path, {"metadata": meta, "data": encoded})

    def _apply(self, version: str, kind: str, path: str, fields: Mapping[str, Any]) -> None:
        name = fields["metadata"]["name"]
        body = {"apiVersion": version, "kind": kind, **fields}
        try:
            request = urllib.request.Request(
                f"{self.url}{path}/{name}?fieldManager=berthmaster-keys&force=true",
                data=json.dumps(body).encode(),
                method="PATCH",
                headers={
                    "Authorization": f"Bearer {(self.folder / 'token').read_text().strip()}",
                    "Content-Type": "application/apply-patch+yaml",
                },
            )
            trusted = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))
            with urllib.request.urlopen(request, timeout=CALL_LIMIT_S, context=trusted):
                pass
        except urllib.error.HTTPError as error:
            with error:
                why = HTTPStatus(error.code).phrase if error.code in set(HTTPStatus) else "refused"
            hint = "; the chart makes the object: helm upgrade" if error.code == 404 else ""
            raise PublishFailed(f"{kind} {name}: {error.code} {why}{hint}") from None
        except OSError as error:
            raise PublishFailed(f"{kind} {name}: {error}") from error


class Publisher:
    """Writes each Secret with changed content."""

    def __init__(self, write: Callable[[str, Mapping[str, bytes]], None]) -> None:
        self._write = write
        self._written: dict[str, str] = {}
        self._again_s = 0.0

    def compare(self, wanted: Mapping[str, Mapping[str, bytes]], now_s: float) -> list[str]:
        """Write changed Secrets and return their names. Raises PublishFailed."""
        if now_s >= self._again_s:
            self._written.clear()
            self._again_s = now_s + WRITE_AGAIN_S
        changed = []
        for name, data in wanted.items():
            digest = hashlib.sha256(repr(sorted(data.items())).encode()).hexdigest()
            if self._written.get(name) != digest:
                self._write(name, data)
                self._written[name] = digest
                changed.append(name)
        return changed


async def main(ctx: Context[HubKeysSettings]) -> None:
    """Create the folder, then keep the Secrets equal to the content. Raises CannotStart."""
    settings = ctx.settings
    names = [*settings.external, *settings.names]
    ctx.health.ready("secrets", False, "not written yet")
    try:
        await asyncio.to_thread(
            prepare,
            settings.data,
            url=settings.nats_url,
            names=settings.names,
            external=settings.external,
            monitors=settings.monitors,
            tenants=settings.tenants or (DEFAULT_TENANT,),
            login=settings.login,
            certificates=settings.certificates,
            clearing=settings.clearing,
        )
    except (*FAULTS, CertificatesError) as error:
        raise CannotStart(f"{settings.data} cannot be prepared: {fault_text(error)}") from error
    publisher = Publisher(ApiServer.of_pod().write)
    failing = ctx.metrics.gauge("keys_failing", "1 while writes of the pods' Secrets fail")
    loop = asyncio.get_running_loop()

    def compare() -> list[str]:
        renew_certificates(settings.data, names, settings.certificates, settings.clearing)
        wanted = dict(parts(settings.data, settings.certificates, settings.clearing))
        if CLEARING_SECRET in wanted:
            authority = certificates_in(settings.data / TLS_FOLDER).ca
            wanted[CLEARING_CONFIGURATION] = {"ca.crt": authority.read_bytes()}
        return publisher.compare(wanted, loop.time())

    told = ""
    async for _ in beats(COMPARE_EVERY_S, ctx.stopping):
        trouble = ""
        try:
            if changed := await asyncio.to_thread(compare):
                ctx.log.info("secrets written", names=changed)
        except (PublishFailed, CertificatesError, OSError) as error:
            trouble = str(error)
        failing.set(bool(trouble))
        ctx.health.ready("secrets", not trouble, trouble)
        if trouble and trouble != told:
            ctx.log.error("secrets not written", why=trouble)
        told = trouble


SERVICE: Final = Service(NAME, HubKeysSettings, main)

if __name__ == "__main__":
    run(SERVICE, sys.argv[1:])
