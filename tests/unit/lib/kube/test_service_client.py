"""Where services look for their cluster."""

from pathlib import Path

import pytest

from berthmaster.lib.kube.errors import BadConfig
from berthmaster.lib.kube.service_client import IN_A_POD, ClusterSettings, access_of
from tests.bus.tools import story

KUBECONFIG = """
current-context: east
clusters: [{name: c, cluster: {server: "https://east.example.com:6443"}},
           {name: d, cluster: {server: "https://west.example.com:6443"}}]
contexts: [{name: east, context: {cluster: c, namespace: team}},
           {name: west, context: {cluster: d}}]
"""


@story
async def test_a_kubeconfig_that_is_named_counts_in_a_pod_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config"
    file.write_text(KUBECONFIG)
    monkeypatch.setenv(IN_A_POD, "10.0.0.1")
    access = await access_of(ClusterSettings(kubeconfig=file))
    assert (access.server, access.namespace) == ("https://east.example.com:6443", "team")
    access = await access_of(ClusterSettings(kubeconfig=file, context="west"))
    assert access.server == "https://west.example.com:6443"


@story
async def test_without_one_it_is_the_pods_own_account_inside_and_kubectls_way_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config"
    file.write_text(KUBECONFIG)
    monkeypatch.setenv("KUBECONFIG", str(file))
    monkeypatch.delenv(IN_A_POD, raising=False)
    assert (await access_of(ClusterSettings())).context == "east"
    monkeypatch.setenv(IN_A_POD, "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    with pytest.raises(BadConfig, match="service account"):
        await access_of(ClusterSettings())
    assert (await access_of(ClusterSettings(context="west"))).context == "west"
