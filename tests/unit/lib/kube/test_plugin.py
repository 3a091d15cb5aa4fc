"""Credential plugins: programs that print what is to be shown, or do not."""

import asyncio
import json
import stat
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from berthmaster.lib.kube.config import Access, from_kubeconfig
from berthmaster.lib.kube.errors import BadConfig
from berthmaster.lib.kube.kubeconfig import Exec, User
from berthmaster.lib.kube.loader import Loader
from berthmaster.lib.kube.objects import timestamp
from tests.support.patience import until
from tests.unit.lib.kube.papers import V1, Authority, credential, kubeconfig, pem_of, text
from tests.unit.lib.kube.stage import WIDGETS, Stage, Widget, refuse


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


def script(folder: Path, body: str, name: str = "plugin") -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def printing(folder: Path, status: dict[str, Any] | None, **more: Any) -> Path:
    """A plugin that counts its runs and prints this."""
    answer = credential(status, **more)
    return script(folder, f"echo run >>{folder}/runs\ncat <<'END'\n{answer}\nEND")


def runs(folder: Path) -> int:
    path = folder / "runs"
    return len(path.read_text().splitlines()) if path.exists() else 0


class Asking:
    def __init__(
        self, command: Path, clock: Clock | None = None, *, hint: str = "", limit_s: float = 10.0
    ) -> None:
        wanted = Exec(command=str(command), api_version=V1, install_hint=hint)
        access = Access(server="https://api", source="file", context="here", user=User(exec=wanted))
        self.loader = Loader(access, now=clock or Clock(), plugin_limit_s=limit_s)

    async def shown(self, *, refused: bool = False) -> tuple[str, tuple[bytes, bytes]]:
        await self.loader.refresh(refused=refused)
        return self.loader.token, self.loader.certificate


NONE = (b"", b"")


def problem_of(command: Path, **options: Any) -> str:
    with pytest.raises(BadConfig) as caught:
        asyncio.run(Asking(command, **options).shown())
    return str(caught.value)


def test_a_token_is_asked_for_once_and_again_shortly_before_it_ends(tmp_path: Path) -> None:
    async def story() -> None:
        clock = Clock()
        ends = timestamp(clock.now_s + 600)
        asking = Asking(printing(tmp_path, {"token": "abc", "expirationTimestamp": ends}), clock)
        for _ in range(3):
            assert await asking.shown() == ("Bearer abc", NONE)
        assert runs(tmp_path) == 1
        clock.now_s += 571  # less than half a minute is left
        await asking.shown()
        assert runs(tmp_path) == 2

    asyncio.run(story())


def test_refused_token_is_renewed_once_for_all(tmp_path: Path) -> None:
    async def story() -> None:
        asking = Asking(printing(tmp_path, {"token": "abc"}))
        await asking.shown()
        await asyncio.gather(*(asking.shown(refused=True) for _ in range(20)))
        assert runs(tmp_path) == 2
        await asking.shown(refused=True)
        assert runs(tmp_path) == 3

    asyncio.run(story())


def test_a_certificate_is_shown_instead_of_or_beside_a_token(tmp_path: Path) -> None:
    certificate, key = Authority().issue("ann")
    pair = {"clientCertificateData": certificate.decode(), "clientKeyData": key.decode()}
    only = Asking(printing(tmp_path, pair))
    assert asyncio.run(only.shown()) == ("", (certificate, key))
    both = Asking(printing(tmp_path, {**pair, "token": "abc"}))
    assert asyncio.run(both.shown()) == ("Bearer abc", (certificate, key))


@pytest.mark.parametrize(
    ("status", "problem"),
    [
        (None, "exec.command: printed an ExecCredential without status"),
        ({}, "exec.status: neither token nor client certificate"),
        ({"clientKeyData": "k"}, "exec.status: a certificate needs its key"),
        (
            {"clientCertificateData": "s3cret", "clientKeyData": "s3cret"},
            "exec.status.clientCertificateData: certificate and key are no pair",
        ),
        ({"token": "s3cret\n"}, "exec.status.token: holds what no HTTP header can"),
        (
            {"token": "s3cret", "expirationTimestamp": "tomorrow"},
            "exec.status.expirationTimestamp: no time as Kubernetes writes it: 'tomorrow'",
        ),
        ({"token": 5}, "exec.command: did not print an ExecCredential"),
    ],
)
def test_what_is_no_credential_is_told_and_not_shown(
    tmp_path: Path, status: dict[str, Any] | None, problem: str
) -> None:
    told = problem_of(printing(tmp_path, status))
    assert told.startswith("file, context 'here': ")
    assert problem in told
    assert "s3cret" not in told


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("echo hello", "did not print an ExecCredential"),
        ('echo \'{"kind": "Other", "apiVersion": "v9"}\'', "printed 'v9 Other', not"),
        ("echo 'please log in' >&2; exit 3", "ended with code 3: please log in"),
        (
            "echo 'no use for eyJhbGciOiJSUzI1NiJ9eyJpc3MiOiJrdWJlcm5ldGVz' >&2; exit 1",
            "ended with code 1: no use for <hidden>",
        ),
        ("exit 9", "ended with code 9: it did not say why"),
        ("kill -9 $$", "ended with code -9"),
        ("yes | head -c 2000000", "prints more than 1048576 bytes"),
        ("yes | head -c 2000000 >&2; echo no", "did not print an ExecCredential"),
        ("read line; echo got $line >&2; exit 1", "ended with code 1: got"),  # no input to be had
    ],
)
def test_failed_plugin_reports_output(tmp_path: Path, body: str, problem: str) -> None:
    assert problem in problem_of(script(tmp_path, body))


def test_a_program_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    body = f"sleep 3600 & echo $! >{tmp_path}/child; echo $$ >{tmp_path}/pid; sleep 3600"
    told = problem_of(script(tmp_path, body), limit_s=0.5)
    assert "no answer within 0.5 s" in told
    assert not is_alive(tmp_path / "pid")
    asyncio.run(until(lambda: not is_alive(tmp_path / "child")))  # killed as well: soon over


def test_program_that_prints_for_ever_is_ended(tmp_path: Path) -> None:
    told = problem_of(script(tmp_path, "exec yes"), limit_s=0.5)
    assert "no answer within 0.5 s" in told


def is_alive(named: Path) -> bool:
    """Whether it runs; what has ended and waits for somebody to notice does not."""
    try:
        stat = Path(f"/proc/{named.read_text().strip()}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_a_program_is_ended_when_nobody_waits_for_it_any_more(tmp_path: Path) -> None:
    async def story() -> None:
        asking = asyncio.create_task(
            Asking(script(tmp_path, f"echo $$ >{tmp_path}/pid; exec sleep 60")).shown()
        )
        await until((tmp_path / "pid").exists)
        await until((tmp_path / "pid").read_text)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert not is_alive(tmp_path / "pid")

    asyncio.run(story())


def test_a_plugin_with_a_key_behind_a_password_is_told_so(tmp_path: Path) -> None:
    certificate, key = Authority().issue("ann")
    locked = pem_of(load_pem_private_key(key, None), b"pass")  # type: ignore[arg-type]
    pair = {"clientCertificateData": certificate.decode(), "clientKeyData": locked.decode()}
    assert "no pair in PEM form without password" in problem_of(printing(tmp_path, pair))


def test_a_program_that_is_not_there_is_told_with_how_to_get_it(tmp_path: Path) -> None:
    told = problem_of(tmp_path / "no-such-plugin", hint="brew install it")
    assert "cannot start" in told
    assert "No such file or directory (brew install it)" in told


def test_a_failure_does_not_cost_the_next_try(tmp_path: Path) -> None:
    async def story() -> None:
        asking = Asking(script(tmp_path, "exit 1"))
        with pytest.raises(BadConfig):
            await asking.shown()
        printing(tmp_path, {"token": "abc"})  # the same file, put right
        assert await asking.shown() == ("Bearer abc", NONE)

    asyncio.run(story())


def test_plugin_token_of_kubeconfig_is_used(tmp_path: Path) -> None:
    async def story() -> None:
        async with Stage() as stage:
            await stage.put("a")
            command = script(
                tmp_path,
                f'echo "$KUBERNETES_EXEC_INFO" >{tmp_path}/info\n'
                f"n=$(cat {tmp_path}/n 2>/dev/null || echo 0); n=$((n+1)); echo $n >{tmp_path}/n\n"
                f'echo \'{{"apiVersion":"{V1}","kind":"ExecCredential",'
                '"status":{"token":"\'$1-$SUFFIX-$n\'"}}\'',
            )
            user = {
                "exec": {
                    "apiVersion": V1,
                    "command": f"./{command.name}",  # relative to the kubeconfig
                    "args": ["tok"],
                    "env": [{"name": "SUFFIX", "value": "en"}],
                    "provideClusterInfo": True,
                    "interactiveMode": "IfAvailable",
                }
            }
            path = tmp_path / "config"
            path.write_bytes(text(kubeconfig({"server": stage.url}, user)))
            access = await from_kubeconfig(path)
            async with await stage.client(access=access) as client:
                widget = WIDGETS.path(namespace="toys", name="a")
                await client.get(widget, Widget)
                stage.before.append(refuse(401, "Unauthorized"))
                await client.get(widget, Widget)
            shown = [headers["Authorization"] for headers in stage.headers]
            assert shown == ["Bearer tok-en-1", "Bearer tok-en-1", "Bearer tok-en-2"]
            info = json.loads((tmp_path / "info").read_text())
            assert info == {
                "apiVersion": V1,
                "kind": "ExecCredential",
                "spec": {"interactive": False, "cluster": {"server": stage.url}},
            }

    asyncio.run(story())
