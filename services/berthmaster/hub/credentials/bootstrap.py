"""Bootstrap Secrets: an operator's kubeconfig for a worker, treated as untrusted input.

A field that could run programs here, read local files, or weaken TLS is refused by name, as in
Kueue. The credentials are only sent to the kubeconfig's own server, under its own authority. The
last few versions of each Secret stay in memory: if a Secret is deleted together with its cluster,
the stored version still serves to revoke.
"""

import base64
import binascii
from typing import Final

import msgspec

from berthmaster.hub.credentials.core import names
from berthmaster.hub.credentials.core.described import KUBECONFIG
from berthmaster.hub.credentials.core.objects import Secret
from berthmaster.hub.credentials.core.observed import Bootstrap, Endpoint, Life, Refused
from berthmaster.lib.kube.config import Access, from_kubeconfig_bytes
from berthmaster.lib.kube.errors import BadConfig

CA_FIELD: Final = "certificate-authority-data"
KEPT: Final = 3  # number of versions of a Secret in memory
_SUBJECT: Final = "system:serviceaccount:"


class _Claims(msgspec.Struct):
    sub: str = ""
    iat: float = 0.0
    exp: float = 0.0


class Bootstraps:
    """Access to workers, by the version of the bootstrap Secret."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, Access]] = {}

    def read(self, secret: Secret) -> tuple[str, Bootstrap | Refused]:
        """Return the cluster of the Secret, and the parsed bootstrap or the refusal."""
        meta = secret.metadata
        name = f"{meta.namespace}/{meta.name}"
        where = f"Secret {name}"
        cluster = meta.annotations.get(names.CLUSTER, "") or meta.name
        text = (secret.data or {}).get(KUBECONFIG)
        if text is None:
            return cluster, Refused(where, f"data.{KUBECONFIG}", "missing")
        try:
            data = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            return cluster, Refused(where, f"data.{KUBECONFIG}", "is not base64")
        try:
            access = from_kubeconfig_bytes(data, source=where)
        except BadConfig as error:
            return cluster, Refused(where, error.field or KUBECONFIG, error.problem)
        if why := ca_fault(access):
            return cluster, Refused(where, CA_FIELD, why)
        versions = self._known.setdefault(name, {})
        versions[meta.resource_version] = access
        while len(versions) > KEPT:
            del versions[next(iter(versions))]
        endpoint = Endpoint(access.server, access.ca, access.server_name, access.proxy)
        return cluster, Bootstrap(endpoint, name, meta.resource_version)

    def access(self, source: Bootstrap) -> Access | None:
        """Return the access of a bootstrap that this process has read."""
        return self._known.get(source.secret, {}).get(source.version)


def ca_fault(access: Access) -> str:
    """Return why a credential may not be sent to this server without an authority; "" = it may."""
    if access.ca or not access.server.startswith("https://"):
        return ""
    return "missing: whoever holds any public certificate could pose as the worker"


def life_of(access: Access) -> Life | None:
    """Return the lifetime of the account token, or None.

    None means that the access uses no account token, or that the token never ends.
    """
    parts = access.user.token.split(".")
    if len(parts) != 3 or access.headers:
        return None
    try:
        raw = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        claims = msgspec.json.decode(raw, type=_Claims)
    except (binascii.Error, ValueError, msgspec.DecodeError):
        return None
    namespace, colon, account = claims.sub.removeprefix(_SUBJECT).partition(":")
    if not (claims.sub.startswith(_SUBJECT) and colon and account and claims.exp > claims.iat > 0):
        return None
    return Life(namespace, account, claims.iat, claims.exp)
