"""How to reach one API server and as whom: what a kubeconfig comes down to.

Credentials change while we run (mounted tokens are renewed, plugins hand out short ones), so a
source is asked before each request and keeps what it has as long as it may.
"""

import asyncio
import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from berthmaster.kubernetes.errors import BadConfig

FILE_TOKEN_S: Final = 60.0  # the kubelet renews a token at 80 % of its hour; client-go: 1 minute
MAX_TOKEN_BYTES: Final = 64 * 1024


@dataclass(frozen=True, repr=False)
class Credential:
    """What is shown to the API server at this moment. Never printed: it has no repr."""

    authorization: str = ""  # a whole header; "" = none
    certificate: bytes = b""  # PEM; "" = none
    key: bytes = b""


class CredentialSource(Protocol):
    """Where credentials come from."""

    async def credential(self, *, renew: bool = False) -> Credential:
        """The credential for now; ``renew``: the server refused the last one, so fetch another.

        Raises BadConfig.
        """
        ...


class Fixed:
    """A credential that never changes: a token or certificate of the kubeconfig itself."""

    def __init__(self, credential: Credential) -> None:
        self._credential = credential

    async def credential(self, *, renew: bool = False) -> Credential:
        """The only one there is."""
        return self._credential


class TokenFile:
    """A bearer token in a file that somebody else renews."""

    def __init__(
        self, path: Path, *, source: str, context: str = "", base: Credential | None = None
    ) -> None:
        self._path = path
        self._source = source
        self._context = context
        self._base = base or Credential()
        self._read_at_s = 0.0
        self._credential: Credential | None = None

    async def credential(self, *, renew: bool = False) -> Credential:
        """The token, read anew every minute or when it was refused. Raises BadConfig."""
        now_s = asyncio.get_running_loop().time()
        if self._credential is None or renew or now_s - self._read_at_s > FILE_TOKEN_S:
            try:
                self._credential = bearer(self._read(), self._base)
                self._read_at_s = now_s
            except BadConfig:
                # A file that is being replaced: the old token may well live on.
                if self._credential is None or renew:
                    raise
        return self._credential

    def _read(self) -> str:
        problem = ""
        try:
            with self._path.open("rb") as file:
                data = file.read(MAX_TOKEN_BYTES)
        except OSError as error:
            problem = f"{self._path}: {error.strerror or error}"
            data = b""
        token = data.decode("ascii", errors="replace").strip()
        if not problem and (not token or not token.isprintable() or not token.isascii()):
            problem = f"{self._path} holds no token"
        if problem:
            raise BadConfig(self._source, self._context, "tokenFile", problem)
        return token


@dataclass(frozen=True, repr=False)
class Access:
    """Everything that a client needs to talk to one API server."""

    server: str  # https://host:port, perhaps with a path; no slash at its end
    context: str = ""  # the kubeconfig's name for it, for people
    ca: bytes = b""  # PEM; empty = the system's
    verify: bool = True  # False only if a person's own kubeconfig says so
    server_name: str = ""  # the name in its certificate, where that is another than the host
    proxy: str = ""
    namespace: str = ""  # the context's default
    headers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # impersonation
    source: CredentialSource = field(default_factory=lambda: Fixed(Credential()))

    def __repr__(self) -> str:
        return f"Access(server={self.server!r}, context={self.context!r})"


def bearer(token: str, base: Credential | None = None) -> Credential:
    """The credential that a bearer token is, beside a certificate that is there already."""
    base = base or Credential()
    return Credential(f"Bearer {token}", base.certificate, base.key)


def basic(user: str, password: str, base: Credential) -> Credential:
    """User name and password, which some proxies before API servers want."""
    pair = base64.b64encode(f"{user}:{password}".encode()).decode()
    return Credential(f"Basic {pair}", base.certificate, base.key)
