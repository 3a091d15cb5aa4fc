"""Kubeconfigs of people, of Secrets and of pods."""

import asyncio
import base64
import os
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from berthmaster.lib.kube.config import (
    Access,
    contexts,
    from_kubeconfig,
    from_kubeconfig_bytes,
    in_cluster,
)
from berthmaster.lib.kube.errors import BadConfig
from berthmaster.lib.kube.loader import Loader
from tests.unit.lib.kube.papers import Authority, encoded, kubeconfig, pem_of, text

AUTHORITY = Authority()
CERTIFICATE, KEY = AUTHORITY.issue("ann")


def read(path: Path | None = None, context: str = "") -> Access:
    return asyncio.run(from_kubeconfig(path, context))


class Shown(NamedTuple):
    authorization: str = ""
    certificate: bytes = b""
    key: bytes = b""


def shown(access: Access) -> Shown:
    async def story() -> Shown:
        loader = Loader(access)
        await loader.refresh()
        with loader.configuration() as found:
            pair = [Path(name).read_bytes() for name in (found.cert_file, found.key_file) if name]
            return Shown(found.api_key["BearerToken"], *pair)

    return asyncio.run(story())


def file(folder: Path, config: dict[str, Any], name: str = "config") -> Path:
    path = folder / name
    path.write_bytes(text(config))
    return path


def problem_of(data: bytes, **options: Any) -> str:
    with pytest.raises(BadConfig) as caught:
        from_kubeconfig_bytes(data, **options)
    return str(caught.value)


OIDC = {"auth-provider": {"name": "oidc", "config": {"refresh-token": "s3cret"}}}


# ---------------------------------------------------------------- of people


def test_a_file_says_where_to_go_whom_to_trust_and_what_to_show(tmp_path: Path) -> None:
    cluster = {
        "server": "https://api.example:6443/clusters/one/",
        "certificate-authority-data": encoded(AUTHORITY.pem),
        "tls-server-name": "kubernetes",
        "proxy-url": "http://proxy:3128",
    }
    user = {
        "client-certificate-data": encoded(CERTIFICATE),
        "client-key-data": encoded(KEY),
        "as": "bob",
        "as-uid": "7",
        "as-groups": ["a", "b"],
        "as-user-extra": {"why": ["x"]},
    }
    access = read(file(tmp_path, kubeconfig(cluster, user)))
    assert (access.server, access.context, access.namespace) == (
        "https://api.example:6443/clusters/one",
        "here",
        "ns",
    )
    assert (access.ca, access.verify, access.server_name) == (AUTHORITY.pem, True, "kubernetes")
    assert access.proxy == "http://proxy:3128"
    assert access.headers == {
        "Impersonate-User": ("bob",),
        "Impersonate-Uid": ("7",),
        "Impersonate-Group": ("a", "b"),
        "Impersonate-Extra-why": ("x",),
    }
    assert shown(access) == Shown("", CERTIFICATE, KEY)


def test_paths_are_relative_to_the_file_that_names_them(tmp_path: Path) -> None:
    folder = tmp_path / "kube"
    folder.mkdir()
    (folder / "ca.pem").write_bytes(AUTHORITY.pem)
    (folder / "client.pem").write_bytes(CERTIFICATE)
    (folder / "client.key").write_bytes(KEY)
    (folder / "token").write_text(" abc\n")
    user = {"client-certificate": "client.pem", "client-key": "client.key", "tokenFile": "token"}
    path = file(folder, kubeconfig({"certificate-authority": "ca.pem"}, user))
    access = read(path)
    assert access.ca == AUTHORITY.pem
    assert shown(access) == Shown("Bearer abc", CERTIFICATE, KEY)


def test_kubeconfig_first_file_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    first = kubeconfig(user={"tokenFile": "token"}, name="one", current="")
    second = kubeconfig({"server": "https://other:1"}, name="two")
    paths = [file(tmp_path / "a", first), tmp_path / "missing", file(tmp_path, second)]
    (tmp_path / "a" / "token").write_text("from-a")
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(map(str, paths)))
    access = read()
    # The current context of the second file, with the cluster and user of the first.
    assert (access.context, access.server) == ("two", "https://api:6443")
    assert shown(access).authorization == "Bearer from-a"
    assert read(None, "one").context == "one"
    assert set(contexts()) == {"one", "two"}


def test_kubeconfig_defaults_to_home_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(BadConfig) as caught:
        read()
    assert str(caught.value) == (
        f"{tmp_path}/.kube/config: {tmp_path}/.kube/config: No such file or directory"
    )
    (tmp_path / ".kube").mkdir()
    file(tmp_path / ".kube", kubeconfig())
    assert shown(read()).authorization == "Bearer s3cret"


@pytest.mark.parametrize(
    ("config", "context", "problem"),
    [
        (kubeconfig(), "there", "context 'there': contexts: no such context; there are here"),
        (kubeconfig(current=""), "", "current-context: not set; there are here"),
        (
            {**kubeconfig(), "clusters": []},
            "",
            "context 'here': cluster: no cluster 'c' in clusters",
        ),
        ({**kubeconfig(), "users": None}, "", "context 'here': user: no user 'u' in users"),
        (kubeconfig({"server": ""}), "", "server: must be https://host:port"),
        (kubeconfig({"server": "api:6443"}), "", "server: must be https://host:port"),
        (kubeconfig({"server": "ftp://api"}), "", "server: must be https://host:port"),
        (kubeconfig({"server": "https://u:p@api"}), "", "without user, query or fragment"),
        (kubeconfig({"server": "https://api:99999"}), "", "server: must be https://host:port"),
        (kubeconfig({"server": "https://[::1"}), "", "server: must be https://host:port"),
        (kubeconfig({"server": "https://a..b"}), "", "server: must be https://host:port"),
        (kubeconfig({"server": f"https://{'a' * 64}.b"}), "", "server: must be https://host:port"),
        (kubeconfig({"proxy-url": "socks5://u:s3cret@p"}), "", "proxy-url: must be http://host:p"),
        (
            kubeconfig({"certificate-authority-data": "%%%"}),
            "",
            "certificate-authority-data: is not base64",
        ),
        (
            kubeconfig({"certificate-authority-data": encoded(b"hello")}),
            "",
            "certificate-authority: no certificates in PEM form",
        ),
        (
            kubeconfig({"certificate-authority": "nowhere.pem"}),
            "",
            "nowhere.pem: No such file or directory",
        ),
        (
            kubeconfig(
                {
                    "certificate-authority-data": encoded(AUTHORITY.pem),
                    "insecure-skip-tls-verify": True,
                }
            ),
            "",
            "insecure-skip-tls-verify: cannot be true beside a certificate authority",
        ),
        (
            kubeconfig(user={"client-certificate-data": encoded(CERTIFICATE)}),
            "",
            "client-certificate: certificate and key come together",
        ),
        (
            kubeconfig(
                user={
                    "client-certificate-data": encoded(CERTIFICATE),
                    "client-key-data": encoded(Authority().issue("eve")[1]),
                }
            ),
            "",
            "client-certificate: certificate and key are no pair",
        ),
        (kubeconfig(user={"token": "s3cret\nX: y"}), "", "token: holds what no HTTP header can"),
        (
            kubeconfig(user=OIDC),
            "",
            "auth-provider: 'oidc' is not supported, as Kubernetes has removed auth providers",
        ),
        (kubeconfig(user={"as-groups": ["a"]}), "", "as: missing, though groups, uid or extra"),
        (kubeconfig(user={"exec": {"apiVersion": "x"}}), "", "exec.command: missing"),
        (
            kubeconfig(
                user={
                    "exec": {"apiVersion": "client.authentication.k8s.io/v1alpha1", "command": "x"}
                }
            ),
            "",
            "exec.apiVersion: must be one of client.authentication.k8s.io/v1, ",
        ),
        (
            kubeconfig(
                user={
                    "exec": {
                        "apiVersion": "client.authentication.k8s.io/v1",
                        "command": "x",
                        "interactiveMode": "Always",
                    }
                }
            ),
            "",
            "exec.interactiveMode: a service has no terminal to ask at",
        ),
        (kubeconfig({"server": 5}), "", "clusters[0].cluster.server: Expected `str`, got `int`"),
        (kubeconfig(user={"token": ["s3cret"]}), "", "users[0].user.token: Expected `str`"),
    ],
)
def test_a_file_that_cannot_be_used_is_told_by_file_context_and_field(
    tmp_path: Path, config: dict[str, Any], context: str, problem: str
) -> None:
    path = file(tmp_path, config)
    with pytest.raises(BadConfig) as caught:
        read(path, context)
    assert str(caught.value).startswith(str(path))
    assert problem in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert encoded(KEY) not in str(caught.value)


def test_a_key_behind_a_password_is_refused_without_asking_for_it(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key = load_pem_private_key(KEY, None)
    locked = pem_of(key, b"pass")  # type: ignore[arg-type]
    user = {"client-certificate-data": encoded(CERTIFICATE), "client-key-data": encoded(locked)}
    with pytest.raises(BadConfig, match="no pair in PEM form without password"):
        read(file(tmp_path, kubeconfig(user=user)))


def test_a_persons_own_file_may_do_what_kubectl_lets_it(tmp_path: Path) -> None:
    user = {"username": "ann", "password": "s3cret"}
    cluster = {"server": "http://elsewhere:8080", "insecure-skip-tls-verify": True}
    access = read(file(tmp_path, kubeconfig(cluster, user)))
    assert (access.server, access.verify) == ("http://elsewhere:8080", False)
    pair = base64.b64encode(b"ann:s3cret").decode()
    assert shown(access).authorization == f"Basic {pair}"
    assert shown(read(file(tmp_path, kubeconfig(user={})))) == Shown()


def test_nothing_of_a_credential_is_in_what_gets_printed(tmp_path: Path) -> None:
    access = read(file(tmp_path, kubeconfig()))
    assert repr(access) == "Access(server='https://api:6443', context='here')"
    assert "s3cret" not in f"{Loader(access)!r} {access.user!r}"


# ---------------------------------------------------------------- of Secrets


def test_a_secrets_kubeconfig_is_taken_when_it_holds_everything_itself() -> None:
    data = text(
        kubeconfig(
            {"certificate-authority-data": encoded(AUTHORITY.pem)},
            {"client-certificate-data": encoded(CERTIFICATE), "client-key-data": encoded(KEY)},
        )
    )
    access = from_kubeconfig_bytes(data)
    assert (access.server, access.ca) == ("https://api:6443", AUTHORITY.pem)
    assert shown(access) == Shown("", CERTIFICATE, KEY)


EXEC = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "true"}}


@pytest.mark.parametrize(
    ("cluster", "user", "field", "why"),
    [
        ({}, EXEC, "exec", "would run a program here"),
        ({}, {"tokenFile": "/etc/passwd"}, "tokenFile", "names a file of this machine"),
        ({"certificate-authority": "/ca"}, None, "certificate-authority", "names a file"),
        ({}, {"client-certificate": "/c"}, "client-certificate", "names a file"),
        ({}, {"client-key": "/k"}, "client-key", "names a file of this machine"),
        ({}, OIDC, "auth-provider", "is not supported"),
        ({}, {"username": "a", "password": "b"}, "username", "API servers know no passwords"),
        ({"insecure-skip-tls-verify": True}, None, "insecure-skip-tls-verify", "must be checked"),
    ],
)
def test_a_secrets_kubeconfig_may_neither_run_nor_read_nor_trust_blindly(
    cluster: dict[str, Any], user: dict[str, Any] | None, field: str, why: str
) -> None:
    told = problem_of(text(kubeconfig(cluster, user)))
    refused = f"context 'here': {field}: not accepted from a Secret: "
    assert told.startswith(f"kubeconfig of the Secret, {refused}")
    assert why in told


def test_a_secret_may_name_a_program_only_where_we_were_told_so() -> None:
    assert from_kubeconfig_bytes(text(kubeconfig(user=EXEC)), allow_exec=True).context == "here"


def test_a_secrets_credentials_do_not_travel_in_the_open() -> None:
    assert "must be https" in problem_of(text(kubeconfig({"server": "http://api:80"})))
    here = text(kubeconfig({"server": "http://127.0.0.1:80"}))  # does not leave this machine
    assert from_kubeconfig_bytes(here).server == "http://127.0.0.1:80"


def test_where_a_kubeconfig_came_from_is_what_its_errors_say() -> None:
    told = problem_of(b"[]", source="Secret kueue-system/one")
    assert told == "Secret kueue-system/one: is no kubeconfig: not a mapping"


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "is no kubeconfig: not a mapping"),
        (b"just words", "is no kubeconfig: not a mapping"),
        (b"users: [{name: u, user: {token: s3cret}", "is no YAML (line 2)"),
        (b"a: b\ntoken: 's3cret", "is no YAML (line 2)"),
        (b"!!python/object/apply:os.system ['true']", "YAML tags are not accepted (line 1)"),
        (b"\xff\xfe\x00", "is no YAML"),
        (b"a: &a [s3cret]\nb: [*a, *a]", "YAML aliases are not accepted (line 2)"),
        (b"a: " + b"[" * 100_000, "nested deeper than 32 (line 1)"),
        (b"? " * 5000, "nested deeper than 32"),
        (b"contexts: [{}]", "contexts[0]: Object missing required field `name`"),
        (b"{}", "current-context: not set; there are no contexts at all"),
        (b"{1: 2}", "a key is no text; put it in quotes (line 1)"),
    ],
)
def test_what_is_no_kubeconfig_is_told_without_showing_it(data: bytes, problem: str) -> None:
    told = problem_of(data)
    assert problem in told
    assert "s3cret" not in told
    assert len(told) < 300


# ---------------------------------------------------------------- of pods


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "ca.crt").write_bytes(AUTHORITY.pem)
    (tmp_path / "namespace").write_text("berth\n")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    return tmp_path


def test_a_pod_talks_to_its_own_cluster(pod: Path) -> None:
    access = asyncio.run(in_cluster(pod))
    assert (access.server, access.context) == ("https://[fd00::1]:443", "in-cluster")
    assert (access.ca, access.namespace) == (AUTHORITY.pem, "berth")
    assert shown(access).authorization == "Bearer first"


def test_refused_token_is_read_again(pod: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        loader = Loader(await in_cluster(pod))

        async def token(*, refused: bool = False) -> str:
            await loader.refresh(refused=refused)
            return loader.token

        assert await token() == "Bearer first"
        (pod / "token").write_text("second")
        assert await token() == "Bearer first"
        monkeypatch.setattr("berthmaster.lib.kube.loader.FILE_TOKEN_S", 0.0)
        assert await token(refused=True) == "Bearer second"

        # A file that is being replaced at this moment: the old token is good for a while.
        (pod / "token").unlink()
        assert await token() == "Bearer second"
        with pytest.raises(BadConfig, match="token: No such file or directory"):
            await token(refused=True)
        (pod / "token").write_text("third")
        assert await token() == "Bearer third"

    asyncio.run(story())


@pytest.mark.parametrize(
    ("missing", "problem"),
    [
        ("token", "Service token file does not exist. "),
        ("ca.crt", "Service certification file does not exists. "),
    ],
)
def test_a_pod_without_its_papers_says_which(pod: Path, missing: str, problem: str) -> None:
    (pod / missing).unlink()
    with pytest.raises(BadConfig, match=f"{problem}.{pod}; outside a pod, give a kubeconfig"):
        asyncio.run(in_cluster(pod))


@pytest.mark.parametrize("token", ["", " \n", "a\nb", "tökén"])
def test_a_token_file_without_a_token_is_told(pod: Path, token: str) -> None:
    (pod / "token").write_text(token)
    with pytest.raises(BadConfig, match=r"token holds no token|Token file exists but empty"):
        asyncio.run(in_cluster(pod))


def test_a_process_outside_a_cluster_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(BadConfig, match=r"Service host/port is not set.*outside a pod, give a kub"):
        asyncio.run(in_cluster())


def test_a_pod_with_a_broken_authority_is_told_so(pod: Path) -> None:
    (pod / "ca.crt").write_text("broken")
    with pytest.raises(BadConfig, match=r"ca\.crt: no certificates in PEM form"):
        asyncio.run(in_cluster(pod))
