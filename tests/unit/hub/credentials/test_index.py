import base64
from typing import Any

import pytest

from berthmaster.hub.credentials.core import manifests, names
from berthmaster.hub.credentials.core.index import ACCOUNT, ClusterIndex
from berthmaster.hub.credentials.core.objects import (
    ClusterPermission,
    ManagedServiceAccount,
    Secret,
)
from berthmaster.hub.credentials.core.observed import (
    Endpoint,
    Managed,
    Observed,
    Refused,
    Registration,
)
from berthmaster.hub.credentials.core.rights import DEFAULT_FRAMEWORKS, rules
from berthmaster.lib.kube.managed_clusters import ManagedCluster
from berthmaster.lib.kueue.multikueue import MultiKueueCluster, MultiKueueConfig
from tests.unit.hub.credentials.world import CLUSTER, book, bootstrap, make, profile, secret_body


def managed(name: str = CLUSTER, *, accepted: bool = True, **spec: Any) -> ManagedCluster:
    body = {"metadata": {"name": name}, "spec": {"hubAcceptsClient": accepted, **spec}}
    return make(ManagedCluster, body)


def at(url: str, ca: bytes = b"CA") -> dict[str, str]:
    return {"url": url, "caBundle": base64.b64encode(ca).decode()}


def token(text: str = "abc", **more: str) -> Secret:
    data = {"token": base64.b64encode(text.encode()).decode(), **more}
    return make(Secret, {"metadata": {"name": ACCOUNT, "namespace": CLUSTER}, "data": data})


def with_ocm(*configs: dict[str, str]) -> ClusterIndex:
    found = book()
    found.uses_managed = True
    found.put(managed(managedClusterClientConfigs=list(configs)))
    return found


def test_of_an_unknown_cluster_nothing_is_said() -> None:
    assert book().observe(CLUSTER) == Observed()
    assert book().clusters() == set()


def test_a_profile_or_a_managed_cluster_makes_it_known_until_it_goes() -> None:
    found = book()
    assert found.put(profile()) == {CLUSTER}
    assert found.observe(CLUSTER).known
    found.put(managed())
    found.put(profile(), gone=True)
    assert found.observe(CLUSTER).known
    found.put(managed(), gone=True)
    assert not found.observe(CLUSTER).known


def test_one_that_the_hub_has_not_accepted_or_that_is_being_deleted_is_not_known() -> None:
    found = book()
    found.put(profile())
    found.put(managed(accepted=False))
    assert not found.observe(CLUSTER).known
    going = {"name": CLUSTER, "deletionTimestamp": "2026-01-01T00:00:00Z"}
    found.put(make(ManagedCluster, {"metadata": going, "spec": {"hubAcceptsClient": True}}))
    assert not found.observe(CLUSTER).known


def test_the_selector_sees_the_labels_of_both() -> None:
    found = book("team=ml,gpu")
    found.put(profile(labels={"team": "ml"}))
    assert not found.observe(CLUSTER).known
    meta = {"name": CLUSTER, "labels": {"gpu": "t4"}}
    found.put(make(ManagedCluster, {"metadata": meta, "spec": {"hubAcceptsClient": True}}))
    assert found.observe(CLUSTER).known


def test_of_two_profiles_of_one_name_the_first_by_namespace_counts() -> None:
    found = book("team=ml")
    found.put(profile(namespace="b", labels={"team": "ml"}))
    assert found.observe(CLUSTER).known
    found.put(profile(namespace="a"))
    assert not found.observe(CLUSTER).known


def test_what_is_told_of_an_endpoint_is_compared_whatever_its_order_and_never_used() -> None:
    def told(*servers: str) -> str:
        found = book()
        providers = [{"name": f"p{n}", "cluster": {"server": s}} for n, s in enumerate(servers)]
        found.put(profile(accessProviders=providers))
        found.bootstrap(("ns", "boot"), CLUSTER, bootstrap())
        assert found.observe(CLUSTER).source == bootstrap()
        return found.observe(CLUSTER).told

    assert told() == ""
    assert told("https://a", "https://b") == told("https://b", "https://a")
    assert told("https://a") != told("https://b")


def test_two_bootstrap_secrets_for_one_cluster_are_one_too_many() -> None:
    found = book()
    found.bootstrap(("ns", "b"), CLUSTER, bootstrap())
    found.bootstrap(("ns", "a"), CLUSTER, bootstrap())
    source = found.observe(CLUSTER).source
    why = "1 more for the same cluster: ns/b; keep one"
    assert source == Refused("Secret ns/a", "metadata.labels", why)
    # One that is now for another cluster touches both.
    assert found.bootstrap(("ns", "a"), "west", bootstrap()) == {CLUSTER, "west"}
    assert found.observe(CLUSTER).source == bootstrap()
    assert found.bootstrap(("ns", "a"), "", None) == {"west"}


def test_a_secret_of_ours_is_read_and_a_copy_of_it_is_not() -> None:
    found = book()
    ours = make(Secret, secret_body(**{names.SERIAL: "5", names.EXPIRES: "2026-01-01T00:00:00Z"}))
    assert found.secret(ours) == {CLUSTER}
    held = found.observe(CLUSTER).secret
    assert held is not None
    assert (held.serial, held.expires_at_s, held.usable) == ("5", 1767225600.0, True)
    copy = secret_body()
    copy["metadata"]["name"] = "copy"
    assert found.secret(make(Secret, copy)) == set()


def test_a_cluster_of_somebody_else_is_in_the_way_and_ours_is_looked_through() -> None:
    found = book()
    body = manifests.multikueue_cluster(CLUSTER)
    found.put(make(MultiKueueCluster, body))
    assert found.observe(CLUSTER).registered == Registration(True, "", "")
    body["spec"]["clusterSource"]["kubeConfig"]["location"] = "elsewhere"
    found.put(make(MultiKueueCluster, body))
    assert found.observe(CLUSTER).registered == Registration(False, "", "")
    body["metadata"]["labels"] = {}
    found.put(make(MultiKueueCluster, body))
    seen = found.observe(CLUSTER)
    assert (seen.registered, seen.foreign) == (None, f"MultiKueueCluster {CLUSTER}")


def test_one_that_the_admission_service_made_for_our_secret_becomes_ours() -> None:
    found = book()
    body = manifests.multikueue_cluster(CLUSTER)
    body["metadata"]["labels"] = {names.MANAGED_BY: names.SIBLING}
    found.put(make(MultiKueueCluster, body))
    seen = found.observe(CLUSTER)
    assert (seen.registered, seen.foreign) == (None, "")  # of a cluster that is not ours to serve
    found.put(profile())
    seen = found.observe(CLUSTER)
    assert (seen.registered, seen.foreign) == (Registration(False, "", ""), "")


def test_who_lists_a_cluster_is_known_and_who_does_no_more_is_told() -> None:
    def config(*clusters: str) -> MultiKueueConfig:
        body = {"metadata": {"name": "all"}, "spec": {"clusters": list(clusters)}}
        return make(MultiKueueConfig, body)

    found = book()
    assert found.put(config("a", "b")) == {"a", "b"}
    assert found.observe("a").listed_by == ("all",)
    assert found.put(config("b", "c")) == {"a", "c"}
    assert found.observe("a").listed_by == ()
    assert found.put(config("b", "c"), gone=True) == {"b", "c"}


def test_what_the_mirror_tells_late_does_not_undo_the_answer_to_a_write() -> None:
    found = book()
    new, old = secret_body(**{names.SERIAL: "2"}), secret_body(**{names.SERIAL: "1"})
    new["metadata"]["resourceVersion"], old["metadata"]["resourceVersion"] = "12", "9"
    found.secret(make(Secret, new))
    found.secret(make(Secret, old))
    held = found.observe(CLUSTER).secret
    assert held is not None
    assert held.serial == "2"


# ---- Open Cluster Management


def test_where_ocm_is_its_token_and_endpoint_are_the_way() -> None:
    found = with_ocm(at("https://east:6443/"))
    found.bootstrap(("ns", "boot"), CLUSTER, bootstrap())
    source = found.observe(CLUSTER).source
    assert source == Managed(Endpoint("https://east:6443", b"CA"), None, "")
    found.token(token())
    source = found.observe(CLUSTER).source
    assert isinstance(source, Managed)
    assert source.token is not None
    assert source.token.text == "abc"
    before = source.token.serial
    found.token(token("abd"))
    source = found.observe(CLUSTER).source
    assert isinstance(source, Managed)
    assert source.token is not None
    assert source.token.serial != before
    assert "abd" not in repr(source)


def test_an_authority_that_the_managed_cluster_leaves_out_comes_with_the_token() -> None:
    found = with_ocm({"url": "https://east:6443"})
    found.token(token(**{"ca.crt": base64.b64encode(b"theirs").decode()}))
    source = found.observe(CLUSTER).source
    assert isinstance(source, Managed)
    assert source.endpoint == Endpoint("https://east:6443", b"theirs")


@pytest.mark.parametrize(
    ("configs", "problem"),
    [
        ((), "managedClusterClientConfigs: none"),
        ((at("http://east"),), "[0].url: must be https"),
        ((at("https://" + "x" * 3000),), "[0].url: must be https"),
        (({"url": "https://east", "caBundle": "%"},), "[0].caBundle: is not base64"),
    ],
)
def test_an_endpoint_that_cannot_be_used_is_named(
    configs: tuple[dict[str, str], ...], problem: str
) -> None:
    found = with_ocm(*configs)
    found.token(token())
    source = found.observe(CLUSTER).source
    assert isinstance(source, Managed)
    assert source.endpoint is None
    assert problem in source.trouble


def test_ocms_objects_are_as_wanted_or_asked_for_again_and_never_somebody_elses() -> None:
    found = with_ocm(at("https://east"))
    spec = manifests.permission_spec(rules(DEFAULT_FRAMEWORKS))

    def ask(account: dict[str, Any], permission: dict[str, Any]) -> Observed:
        for kind, body in ((ManagedServiceAccount, account), (ClusterPermission, permission)):
            body["metadata"]["namespace"] = CLUSTER
            found.put(make(kind, body))
        return found.observe(CLUSTER)

    account = manifests.managed_account(CLUSTER, "24h0m0s")
    permission = manifests.permission(CLUSTER, spec)
    seen = ask(account, permission)
    assert (seen.requested, seen.asked, seen.foreign) == (True, True, "")
    assert not ask(manifests.managed_account(CLUSTER, "1h0m0s"), permission).requested
    fewer = manifests.permission(CLUSTER, manifests.permission_spec(rules(("batch/job",))))
    assert not ask(account, fewer).requested
    theirs = manifests.managed_account(CLUSTER, "24h0m0s")
    theirs["metadata"]["labels"] = {}
    assert ask(theirs, permission).foreign == f"ManagedServiceAccount {CLUSTER}/{ACCOUNT}"
