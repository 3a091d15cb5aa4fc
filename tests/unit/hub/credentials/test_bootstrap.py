"""Bootstrap Secrets, read with suspicion, and what is shown of clusters."""

import base64
import json
from typing import Any

import msgspec
import pytest

from berthmaster.hub.credentials.bootstrap import KEPT, Bootstraps
from berthmaster.hub.credentials.core import names, status
from berthmaster.hub.credentials.core.credentials import Status
from berthmaster.hub.credentials.core.described import KUBECONFIG
from berthmaster.hub.credentials.core.manifests import duration, hub_secret, kubeconfig
from berthmaster.hub.credentials.core.objects import Secret
from berthmaster.hub.credentials.core.observed import Bootstrap, Endpoint, Minted, Refused
from berthmaster.hub.credentials.core.stages import Stage
from berthmaster.lib.kube.config import from_kubeconfig_bytes
from tests.unit.hub.credentials.world import make
from tests.unit.lib.kube.papers import Authority

CA = Authority().pem


def config(**cluster: Any) -> dict[str, Any]:
    where = {
        "server": "https://east:6443",
        "certificate-authority-data": base64.b64encode(CA).decode(),
    }
    return {
        "clusters": [{"name": "c", "cluster": {**where, **cluster}}],
        "users": [{"name": "u", "user": {"token": "very-secret"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }


def secret(text: object, version: str = "1", **notes: str) -> Secret:
    data = text if isinstance(text, str) else json.dumps(text)
    return make(
        Secret,
        {
            "metadata": {
                "name": "east",
                "namespace": "berth-system",
                "resourceVersion": version,
                "annotations": notes,
            },
            "data": {KUBECONFIG: base64.b64encode(data.encode()).decode()},
        },
    )


def test_it_is_for_the_cluster_of_its_name_or_of_its_annotation() -> None:
    found = Bootstraps()
    endpoint = Endpoint("https://east:6443", CA)
    expected = Bootstrap(endpoint, "berth-system/east", "1")
    assert found.read(secret(config())) == ("east", expected)
    assert found.read(secret(config(), **{names.CLUSTER: "west"})) == ("west", expected)


def test_it_serves_while_and_a_little_after_it_is_there() -> None:
    found = Bootstraps()
    sources = []
    for version in range(1, KEPT + 3):
        _, source = found.read(secret(config(), str(version)))
        assert isinstance(source, Bootstrap)
        sources.append(source)
    access = [found.access(source) for source in sources]
    assert [one is not None for one in access] == [False] * 2 + [True] * KEPT
    assert access[-1] is not None
    assert access[-1].server == "https://east:6443"
    assert "very-secret" not in repr(access[-1])


@pytest.mark.parametrize(
    ("spoiled", "field"),
    [
        ("{", KUBECONFIG),
        ({}, "current-context"),
        (config(**{"certificate-authority-data": ""}), "certificate-authority-data"),
        (config(**{"certificate-authority-data": "%"}), "certificate-authority-data"),
        (config(**{"certificate-authority-data": "eA=="}), "certificate-authority"),
        (config(**{"certificate-authority": "/etc/ca"}), "certificate-authority"),
        (config(**{"insecure-skip-tls-verify": True}), "insecure-skip-tls-verify"),
        (config(server="http://east"), "server"),
        (config(server=""), "server"),
    ],
)
def test_what_is_refused_names_its_field_and_no_secret(spoiled: object, field: str) -> None:
    found = Bootstraps()
    _, source = found.read(secret(spoiled))
    assert isinstance(source, Refused)
    assert (source.where, source.field) == ("Secret berth-system/east", field)
    assert source.why
    assert "very-secret" not in repr(source)


def test_a_secret_without_the_key_or_in_no_base64_is_refused() -> None:
    found = Bootstraps()
    bare = make(Secret, {"metadata": {"name": "east", "namespace": "n"}})
    assert found.read(bare) == ("east", Refused("Secret n/east", "data.kubeconfig", "missing"))
    odd = make(Secret, {"metadata": {"name": "east", "namespace": "n"}, "data": {KUBECONFIG: "%"}})
    assert found.read(odd) == ("east", Refused("Secret n/east", "data.kubeconfig", "is not base64"))


# ---- what we write


def test_what_kueue_reads_is_taken_by_the_strictest_reader_there_is() -> None:
    endpoint = Endpoint("https://east:6443", CA, "kubernetes", "http://proxy:3128")
    access = from_kubeconfig_bytes(kubeconfig("east", endpoint, "t"))
    told = (access.server, access.ca, access.server_name, access.proxy)
    assert told == tuple(endpoint)
    assert access.context == "east"


def test_the_secret_for_kueue_tells_all_that_a_next_life_must_know() -> None:
    minted = Minted("target", "s1", 1_700_000_000.4, 1_700_000_600.9, "t")
    body = hub_secret("east", Endpoint("https://east:6443"), minted, "told")
    assert body["metadata"] == {
        "name": "multikueue-east",
        "labels": {names.MANAGED_BY: names.MANAGER, names.OURS: "east"},
        "annotations": {
            names.CLUSTER: "east",
            names.TARGET: "target",
            names.TOLD: "told",
            names.SERIAL: "s1",
            names.ISSUED: "2023-11-14T22:13:20Z",
            names.EXPIRES: "2023-11-14T22:23:20Z",
        },
    }
    assert list(body["data"]) == [KUBECONFIG]


def test_durations_are_written_as_go_writes_them() -> None:
    assert [duration(s) for s in (600, 3600, 86_461.9)] == ["0h10m0s", "1h0m0s", "24h1m1s"]


# ---- what is shown


def shown(cluster: str, message: str = "", **more: Any) -> Status:
    base = Status(cluster, Stage.HELD, message, True, False, False, "bootstrap", 2e9, 1.9e9, 1.8e9)
    return base._replace(**more)


def test_a_cluster_is_one_line_with_what_people_need() -> None:
    [(name, text)] = status.table([shown("east")]).items()
    assert name == "east"
    assert msgspec.json.decode(text) == {
        "state": "Held",
        "ready": True,
        "draining": False,
        "by": "bootstrap",
        "expiresAt": "2033-05-18T03:33:20Z",
        "renewAt": "2030-03-17T17:46:40Z",
        "since": "2027-01-15T08:00:00Z",
        "message": "",
    }
    [text] = status.table([shown("east", draining=True, renew_at_s=float("inf"))]).values()
    assert (msgspec.json.decode(text)["state"], msgspec.json.decode(text)["renewAt"]) == (
        "Draining",
        "",
    )


def test_more_clusters_than_an_object_holds_are_counted() -> None:
    many = [shown(f"c{n}", "x" * 5000) for n in range(3000)]
    table = status.table(many)
    assert sum(len(key) + len(text) for key, text in table.items()) < status.MAX_BYTES
    assert int(table["_more"]) == 3000 - (len(table) - 1)
