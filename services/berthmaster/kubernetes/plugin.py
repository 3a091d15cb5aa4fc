"""Credential plugins: a program that prints a short-lived credential (ExecCredential).

It runs with a time limit, one at a time, without a terminal, and what it printed is kept until it
is about to expire or the server refuses it. Only kubeconfigs that a person has put there may name
one: a kubeconfig out of a Secret that could would run programs for whoever may write the Secret.
"""

import asyncio
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from berthmaster.kubernetes.access import Credential, bearer
from berthmaster.kubernetes.errors import BadConfig
from berthmaster.kubernetes.objects import Struct, seconds
from berthmaster.kubernetes.tls import show, trusting

LIMIT_S: Final = 30.0
MAX_OUTPUT_BYTES: Final = 2**20
EARLY_S: Final = 30.0  # so long before its end a credential is fetched anew
VERSIONS: Final = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_LONG_WORD: Final = re.compile(r"[A-Za-z0-9_+/=.-]{32,}")


class _Status(Struct, frozen=True):
    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: str | None = None


class _ExecCredential(Struct, frozen=True):
    api_version: str = ""
    kind: str = ""
    status: _Status | None = None


class Plugin:
    """Asks a credential plugin when a credential is needed."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        api_version: str,
        source: str,
        context: str,
        env: Mapping[str, str],
        cluster: Mapping[str, object] | None = None,
        hint: str = "",
        base: Credential | None = None,
        now: Callable[[], float],
        limit_s: float = LIMIT_S,
    ) -> None:
        """``cluster``: told to the plugin if it asked for it; ``now``: seconds since 1970."""
        self._command = list(command)
        self._api_version = api_version
        self._source = source
        self._context = context
        self._env = dict(env)
        self._cluster = cluster
        self._hint = hint
        self._base = base or Credential()
        self._now = now
        self._limit_s = limit_s
        self._running = asyncio.Lock()
        self._credential: Credential | None = None
        self._expires_at_s = 0.0  # 0 = the plugin named no end
        self._answers = 0

    async def credential(self, *, renew: bool = False) -> Credential:
        """The credential for now. Raises BadConfig with the reason, and never what was printed."""
        before = self._answers
        async with self._running:
            # Many requests may be refused at once; the first to come here asks for all of them.
            fresh = self._answers != before
            if self._credential is not None and (fresh or not renew) and not self._ends_soon():
                return self._credential
            status = self._status(await self._run())
            self._credential = self._checked(status)
            self._answers += 1
            return self._credential

    def _ends_soon(self) -> bool:
        return bool(self._expires_at_s) and self._now() > self._expires_at_s - EARLY_S

    async def _run(self) -> bytes:
        info: dict[str, object] = {
            "apiVersion": self._api_version,
            "kind": "ExecCredential",
            "spec": {"interactive": False, **({"cluster": self._cluster} if self._cluster else {})},
        }
        env = {
            **os.environ,
            **self._env,
            "KUBERNETES_EXEC_INFO": msgspec.json.encode(info).decode(),
        }
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                env=env,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except (OSError, ValueError) as error:
            words = getattr(error, "strerror", None) or str(error)
            hint = f" ({self._hint})" if self._hint else ""
            raise self._bad(
                "command", f"cannot start {self._command[0]!r}: {words}{hint}"
            ) from None
        try:
            async with asyncio.timeout(self._limit_s):
                out, err = await asyncio.gather(_read(process.stdout), _read(process.stderr))
                code = await process.wait()
        except TimeoutError:
            raise self._bad("command", f"no answer within {self._limit_s:g} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if len(out) > MAX_OUTPUT_BYTES:
            raise self._bad("command", f"prints more than {MAX_OUTPUT_BYTES} bytes")
        if code:
            raise self._bad("command", f"ended with code {code}: {_last_line(err)}")
        return out

    def _status(self, printed: bytes) -> _Status:
        try:
            answer = msgspec.json.decode(printed, type=_ExecCredential)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise self._bad("command", "did not print an ExecCredential") from None
        if answer.kind != "ExecCredential" or answer.api_version != self._api_version:
            found = f"{answer.api_version[:64]} {answer.kind[:64]}".strip()
            raise self._bad("command", f"printed {found!r}, not {self._api_version} ExecCredential")
        if answer.status is None:
            raise self._bad("command", "printed an ExecCredential without status")
        return answer.status

    def _checked(self, status: _Status) -> Credential:
        try:
            self._expires_at_s = seconds(status.expiration_timestamp)
        except ValueError as error:
            raise self._bad("status.expirationTimestamp", str(error)) from None
        certificate = status.client_certificate_data.encode()
        key = status.client_key_data.encode()
        if bool(certificate) != bool(key):
            raise self._bad("status", "a certificate needs its key, and a key its certificate")
        if certificate:
            try:
                show(trusting(verify=False), certificate, key)
            except ValueError as error:
                raise self._bad("status.clientCertificateData", str(error)) from None
        base = Credential("", certificate, key) if certificate else self._base
        if not status.token:
            if not certificate:
                raise self._bad("status", "neither token nor client certificate")
            return base
        if not status.token.isascii() or not status.token.isprintable():
            raise self._bad("status.token", "holds what no HTTP header can")
        return bearer(status.token, base)

    def _bad(self, field: str, problem: str) -> BadConfig:
        return BadConfig(self._source, self._context, f"exec.{field}", problem)


async def _read(stream: asyncio.StreamReader | None) -> bytes:
    """All of it, but no more than a little over the bound; the rest is read and dropped."""
    assert stream is not None
    kept = bytearray()
    while part := await stream.read(65_536):
        if len(kept) <= MAX_OUTPUT_BYTES:
            kept += part
    return bytes(kept)


def _last_line(text: bytes) -> str:
    """The last thing a program complained of, without what might be a credential."""
    lines = text[-4096:].decode(errors="replace").strip().splitlines()
    return _LONG_WORD.sub("<hidden>", lines[-1])[:256] if lines else "it did not say why"
