"""Credential plugins: programs that print a short-lived credential (ExecCredential).

kubernetes_asyncio supplies the command and its environment. Berthmaster runs the program itself,
because the library

- sets no limit on time or output,
- hangs when a plugin writes more to stderr than a pipe holds,
- leaves the plugin running after a cancellation,
- lets the plugin prompt at the terminal,
- does not pass the cluster's data (provideClusterInfo),
- puts all of stderr into its error and the log.

Only an operator's kubeconfig may name a plugin. From a Secret, a plugin would let every writer of
the Secret run programs.
"""

import asyncio
import os
import re
import signal
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import msgspec

from berthmaster.lib.kube.certificate_files import check_pair
from berthmaster.lib.kube.kubeconfig import Exec
from berthmaster.lib.kube.library import ConfigNode, ExecProvider
from berthmaster.lib.kube.objects import Struct, seconds

LIMIT_S: Final = 30.0
MAX_OUTPUT_BYTES: Final = 2**20
_LONG_WORD: Final = re.compile(r"[A-Za-z0-9_+/=.-]{32,}")


class PluginFailed(Exception):
    """No credential: the field of ``exec`` and the reason, without the plugin's output."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"exec.{field}: {problem}")
        self.field = f"exec.{field}"
        self.problem = problem


class Printed(Struct, frozen=True):
    """The credential printed by a plugin. ``repr`` shows no field."""

    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: str | None = None

    def __repr__(self) -> str:
        return "Printed()"

    @property
    def certificate(self) -> tuple[bytes, bytes]:
        """Return certificate and key in PEM form, or two empty values."""
        return self.client_certificate_data.encode(), self.client_key_data.encode()

    @property
    def expires_at_s(self) -> float:
        """Return seconds since 1970; 0 = the plugin stated no end."""
        return seconds(self.expiration_timestamp)


class _ExecCredential(Struct, frozen=True):
    api_version: str = ""
    kind: str = ""
    status: Printed | None = None


class Plugin(ExecProvider):
    """One plugin. The caller caches the credential until its end."""

    def __init__(self, wanted: Exec, cluster: Mapping[str, object], limit_s: float) -> None:
        """``cluster`` is passed to the plugin if its config requests cluster info."""
        super().__init__(ConfigNode("exec", msgspec.to_builtins(wanted)))
        self._cluster = cluster if wanted.provide_cluster_info else None
        self._hint = wanted.install_hint.strip()
        self._limit_s = limit_s

    async def run(self, previous_response: str | None = None) -> Printed:
        """Run the plugin and return its credential. Raise PluginFailed."""
        return self._checked(await self._output())

    async def _output(self) -> bytes:
        info: dict[str, object] = {
            "apiVersion": self.api_version,
            "kind": "ExecCredential",
            "spec": {"interactive": False, **({"cluster": self._cluster} if self._cluster else {})},
        }
        try:
            process = await asyncio.create_subprocess_exec(
                *self.args,
                env={**self.env, "KUBERNETES_EXEC_INFO": msgspec.json.encode(info).decode()},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,  # a separate process group, so that child processes end too
            )
        except (OSError, ValueError) as error:
            words = getattr(error, "strerror", None) or str(error)
            hint = f" ({self._hint})" if self._hint else ""
            raise PluginFailed("command", f"cannot start {self.args[0]!r}: {words}{hint}") from None
        try:
            async with asyncio.timeout(self._limit_s):
                out, err = await asyncio.gather(_read(process.stdout), _read(process.stderr))
                code = await process.wait()
        except TimeoutError:
            raise PluginFailed("command", f"no answer within {self._limit_s:g} s") from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            # An unread pipe never reports its end, and wait() would last for ever.
            process._transport.close()  # type: ignore[attr-defined]
            await process.wait()
        if len(out) > MAX_OUTPUT_BYTES:
            raise PluginFailed("command", f"prints more than {MAX_OUTPUT_BYTES} bytes")
        if code:
            raise PluginFailed("command", f"ended with code {code}: {_last_line(err)}")
        return out

    def _checked(self, output: bytes) -> Printed:
        try:
            answer = msgspec.json.decode(output, type=_ExecCredential)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise PluginFailed("command", "did not print an ExecCredential") from None
        if answer.kind != "ExecCredential" or answer.api_version != self.api_version:
            found = f"{answer.api_version[:64]} {answer.kind[:64]}".strip()
            wanted = f"{self.api_version} ExecCredential"
            raise PluginFailed("command", f"printed {found!r}, not {wanted}")
        status = answer.status
        if status is None:
            raise PluginFailed("command", "printed an ExecCredential without status")
        try:
            _ = status.expires_at_s
        except ValueError as error:
            raise PluginFailed("status.expirationTimestamp", str(error)) from None
        certificate, key = status.certificate
        if bool(certificate) != bool(key):
            raise PluginFailed("status", "a certificate needs its key, and a key its certificate")
        if certificate:
            try:
                check_pair(certificate, key)
            except ValueError as error:
                raise PluginFailed("status.clientCertificateData", str(error)) from None
        if not status.token and not certificate:
            raise PluginFailed("status", "neither token nor client certificate")
        if not status.token.isascii() or not (status.token or "-").isprintable():
            raise PluginFailed("status.token", "holds what no HTTP header can")
        return status


async def _read(stream: asyncio.StreamReader | None) -> bytes:
    """Read to the end, and keep little more than ``MAX_OUTPUT_BYTES``."""
    assert stream is not None
    buffer = bytearray()
    while part := await stream.read(65_536):
        if len(buffer) <= MAX_OUTPUT_BYTES:
            buffer += part
    return bytes(buffer)


def _last_line(text: bytes) -> str:
    """Return the last line of stderr, with long words hidden as possible credentials."""
    lines = text[-4096:].decode(errors="replace").strip().splitlines()
    return _LONG_WORD.sub("<hidden>", lines[-1])[:256] if lines else "it did not say why"
