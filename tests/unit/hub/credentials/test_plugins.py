"""Plugins of access providers: which run, what they print, and what a failure leaves."""

import asyncio
import io
import json
import stat
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from berthmaster.hub.credentials import plugins
from berthmaster.hub.credentials.core.observed import Managed, Referenced, Refused, Source
from berthmaster.hub.credentials.plugins import Plugins, read_providers
from berthmaster.lib.kube.kubeconfig import Exec
from berthmaster.lib.kube.multicluster import ClusterProfile
from berthmaster.lib.kube.objects import timestamp
from berthmaster.lib.runtime.errors import SettingsError
from berthmaster.lib.runtime.log import Log
from tests.unit.hub.credentials.world import CLUSTER, make
from tests.unit.lib.kube.papers import V1, Authority, credential, encoded

CA = Authority().pem
EXEC = "client.authentication.k8s.io/exec"


def profile(
    *names: str, manager: str = "cloud", config: Any = None, **cluster: Any
) -> ClusterProfile:
    told = {
        "server": "https://east:6443",
        "certificate-authority-data": encoded(CA),
        "extensions": [{"name": EXEC, "extension": config or {"clusterName": CLUSTER}}],
        **cluster,
    }
    meta = {"name": CLUSTER, "namespace": "kueue-system"}
    meta_labels = {"labels": {"x-k8s.io/cluster-manager": manager}}
    return make(
        ClusterProfile,
        {
            "metadata": {**meta, **meta_labels},
            "spec": {"clusterManager": {"name": manager}},
            "status": {"accessProviders": [{"name": name, "cluster": told} for name in names]},
        },
    )


def program(folder: Path, body: str) -> Exec:
    path = folder / "plugin"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return Exec(command=str(path), api_version=V1, provide_cluster_info=True)


class Rig:
    """Plugins of one hub, with a clock of the test's."""

    def __init__(self, **providers: Exec | None) -> None:
        self.now_s = 1_000_000.0
        self.sources: list[Source] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.plugins = Plugins(
            providers,
            refresh_s=60.0,
            spawn=self._spawn,
            on_source=lambda cluster, source: self.sources.append(source),
            now=lambda: self.now_s,
            log=Log("credentials", stream=io.BytesIO()),
        )

    def _spawn(self, coro: Coroutine[Any, Any, None], name: str) -> None:
        self.tasks.append(asyncio.ensure_future(coro))

    async def run(self) -> Managed | None:
        """Run what is due; the last access, or None where nothing ran."""
        before = len(self.sources)
        self.plugins.look(lambda cluster: True)
        await asyncio.gather(*self.tasks)
        self.tasks.clear()
        last = self.sources[-1] if len(self.sources) > before else None
        assert last is None or isinstance(last, Managed)
        return last


# ---- the operator's list


def test_list_of_providers_keeps_order_and_who_runs_them(tmp_path: Path) -> None:
    path = tmp_path / "providers.yaml"
    path.write_text(
        f"""
providers:
- name: secretreader
  execConfig: {{apiVersion: {V1}, command: /plugins/reader, args: [-v], provideClusterInfo: true}}
- {{name: kubeconfig-secretreader}}
"""
    )
    found = read_providers(path)
    assert list(found) == ["secretreader", "kubeconfig-secretreader"]
    assert found["kubeconfig-secretreader"] is None
    assert found["secretreader"] == Exec(
        command="/plugins/reader", api_version=V1, args=["-v"], provide_cluster_info=True
    )
    assert read_providers(None) == {}


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("[", "providers"),
        ("providers: 5", "providers"),
        ("providers: [{name: ''}]", "providers[0].name"),
        ("providers: [{name: a}, {name: a}]", "providers[1].name"),
        ("providers: [{name: a, execConfig: {apiVersion: V1}}]", "providers[0].execConfig.command"),
        (
            "providers: [{name: a, execConfig: {apiVersion: v9, command: x}}]",
            "providers[0].execConfig.apiVersion",
        ),
        (
            "providers: [{name: a, execConfig: {apiVersion: V1, command: ./x}}]",
            "providers[0].execConfig.command",
        ),
        (
            "providers: [{name: a, execConfig: {apiVersion: V1, command: x, args: 5}}]",
            "providers",
        ),
    ],
)
def test_bad_list_is_refused_by_its_field(tmp_path: Path, text: str, field: str) -> None:
    path = tmp_path / "providers.yaml"
    path.write_text(text.replace("V1", V1))
    with pytest.raises(SettingsError) as caught:
        read_providers(path)
    assert str(caught.value).startswith(f"--access-providers {path}: {field}: ")


def test_missing_list_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="file: No such file or directory"):
        read_providers(tmp_path / "none.yaml")


# ---- profiles


def test_only_listed_providers_of_other_managers_are_used() -> None:
    rig = Rig(first=None, second=Exec(command="x", api_version=V1))
    read = rig.plugins.read
    assert read(profile("second", "first"), gone=False) == Referenced(CLUSTER, "first")
    chosen = read(profile("second"), gone=False)
    assert isinstance(chosen, Managed)
    assert (chosen.provider, chosen.token, chosen.endpoint and chosen.endpoint.ca) == (
        "second", None, CA,
    )  # fmt: skip
    assert read(profile("evil"), gone=False) == Refused(
        "ClusterProfile kueue-system/east",
        "status.accessProviders",
        "evil: not listed; --access-providers lists first, second",
        "ProviderNotListed",
    )
    assert read(profile("second", manager="berthmaster"), gone=False) is None
    assert read(profile(), gone=False) is None
    assert read(profile("second"), gone=True) is None
    assert Rig().plugins.read(profile("second"), gone=False) is None


@pytest.mark.parametrize(
    ("cluster", "field"),
    [
        ({"server": ""}, "server"),
        ({"server": "http://east"}, "server"),
        ({"server": "https://ann:pw@east"}, "server"),
        ({"certificate-authority-data": ""}, "certificate-authority-data"),
        ({"certificate-authority-data": "eA=="}, "certificate-authority"),
        ({"insecure-skip-tls-verify": True}, "insecure-skip-tls-verify"),
        ({"proxy-url": "ftp://x"}, "proxy-url"),
    ],
)
def test_profile_with_an_unsafe_address_is_refused(cluster: dict[str, Any], field: str) -> None:
    rig = Rig(p=Exec(command="x", api_version=V1))
    found = rig.plugins.read(profile("p", **cluster), gone=False)
    assert isinstance(found, Refused)
    assert (found.reason, found.field) == (
        "ProviderRefused",
        f"status.accessProviders[p].cluster.{field}",
    )


# ---- runs


def test_plugin_runs_again_and_its_turned_token_is_taken(tmp_path: Path) -> None:
    async def story() -> None:
        token = tmp_path / "token"
        token.write_text("one")
        answer = credential({"token": "@"}).replace("@", "'$(cat " + str(token) + ")'")
        body = f'echo "$KUBERNETES_EXEC_INFO" >{tmp_path}/info; echo "$@" >{tmp_path}/args'
        rig = Rig(p=program(tmp_path, f"{body}; echo '{answer}'"))
        evil = "clusterprofiles.multicluster.x-k8s.io/exec/additional-args"
        told = profile("p")
        rig.plugins.read(told, gone=False)
        first = await rig.run()
        assert first is not None
        assert first.token is not None
        assert (first.token.text, first.trouble, rig.plugins.failing) == ("one", "", {})
        info = json.loads((tmp_path / "info").read_text())
        assert info["spec"]["cluster"] == {
            "server": "https://east:6443",
            "certificate-authority-data": encoded(CA),
            "config": {"clusterName": CLUSTER},
        }
        assert await rig.run() is None  # not due yet

        # Another address, or other data, is another run; the profile's own arguments are ignored.
        more: list[dict[str, Any]] = [{"name": evil, "extension": ["--evil"]}]
        more.append({"name": EXEC, "extension": {"clusterName": "west"}})
        rig.plugins.read(profile("p", extensions=more), gone=False)
        assert await rig.run() is not None
        assert (tmp_path / "args").read_text() == "\n"
        info = json.loads((tmp_path / "info").read_text())
        assert info["spec"]["cluster"]["config"] == {"clusterName": "west"}

        # The token turns: seen a minute later, or as soon as the worker rejects the old one.
        rig.plugins.read(told, gone=False)
        await rig.run()
        token.write_text("two")
        rig.now_s += 61
        second = await rig.run()
        assert second is not None
        assert second.token is not None
        assert second.token.text == "two"
        assert second.token.serial != first.token.serial
        token.write_text("three")
        assert await rig.run() is None
        rig.plugins.expire(CLUSTER)
        third = await rig.run()
        assert third is not None
        assert third.token is not None
        assert third.token.text == "three"

    asyncio.run(story())


def test_stated_end_sets_the_next_run(tmp_path: Path) -> None:
    async def story() -> None:
        rig = Rig()
        answer = {"token": "t", "expirationTimestamp": timestamp(rig.now_s + 900)}
        rig = Rig(p=program(tmp_path, f"echo '{credential(answer)}'"))
        rig.plugins.read(profile("p"), gone=False)
        found = await rig.run()
        assert found is not None
        assert found.token is not None
        assert found.token.expires_at_s == rig.now_s + 900
        rig.now_s += 599
        assert await rig.run() is None
        rig.now_s += 2
        assert await rig.run() is not None
        rig.now_s += 400  # the same answer is of no use any more
        late = await rig.run()
        assert late is not None
        assert "is past" in late.trouble

    asyncio.run(story())


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("echo garbage", "exec.command: did not print an ExecCredential"),
        ("sleep 60", "exec.command: no answer within 0.3 s"),
        ("exit 3", "exec.command: ended with code 3: it did not say why"),
        ("yes", "exec.command: no answer within 0.3 s"),
    ],
)
def test_failing_plugin_leaves_the_last_token_and_no_other_cluster_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, why: str
) -> None:
    async def story() -> None:
        good = tmp_path / "good"
        good.touch()
        answer = credential({"token": "kept"})
        text = f"if [ -e {good} ]; then echo '{answer}'; else {body}; fi"
        rig = Rig(p=program(tmp_path, text))
        rig.plugins.read(profile("p"), gone=False)
        first = await rig.run()
        assert first is not None
        assert first.token is not None
        good.unlink()
        if "0.3 s" in why:
            monkeypatch.setattr(plugins, "LIMIT_S", 0.3)
        rig.now_s += 60
        failed = await rig.run()
        assert failed is not None
        assert (failed.token, failed.trouble) == (first.token, why)
        assert rig.plugins.failing == {CLUSTER: why}
        rig.plugins.expire(CLUSTER)  # no faster than the pause
        assert await rig.run() is None
        rig.now_s += 1
        assert await rig.run() is not None
        rig.now_s += 1.5
        assert await rig.run() is None
        good.touch()
        monkeypatch.setattr(plugins, "LIMIT_S", 20.0)
        rig.now_s += 1
        mended = await rig.run()
        assert mended is not None
        assert (mended.token, mended.trouble) == (first.token, "")

    asyncio.run(story())
