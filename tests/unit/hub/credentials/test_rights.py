"""The least rights, and that what deploy/ lets a bootstrap account hand on is just that."""

import asyncio
import io

import click
import pytest
import yaml

from berthmaster.hub.credentials.core import names
from berthmaster.hub.credentials.core.rights import DEFAULT_FRAMEWORKS, FRAMEWORKS, rules
from berthmaster.hub.credentials.core.way_in import documents
from berthmaster.hub.credentials.service import main
from berthmaster.hub.credentials.settings import CredentialsSettings
from berthmaster.lib.runtime.errors import CannotStart
from berthmaster.lib.runtime.health import Health
from berthmaster.lib.runtime.log import Log
from berthmaster.lib.runtime.metrics import Metrics
from berthmaster.lib.runtime.service import Context
from berthmaster.lib.runtime.settings import load
from tests.support import chart
from tests.support.chart import Manifest


def deployed() -> list[Manifest]:
    """The service's objects, without those of the hub."""
    objects = chart.render("standalone", {"credentials": {"enabled": True}})
    return [one for one in objects if "credentials" in one["metadata"]["name"]]


def one(kind: str, name: str) -> Manifest:
    found = [
        each for each in deployed() if (each["kind"], each["metadata"]["name"]) == (kind, name)
    ]
    [match] = found
    return match


def test_jobs_alone_need_four_rules() -> None:
    keeps = ["create", "delete", "get", "list", "patch", "watch"]
    kueue = ["kueue.x-k8s.io"]
    assert rules(["batch/job"]) == [
        {"apiGroups": kueue, "resources": ["workloads"], "verbs": sorted([*keeps, "update"])},
        {
            "apiGroups": kueue,
            "resources": ["workloads/status"],
            "verbs": ["get", "patch", "update"],
        },
        {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": keeps},
        {"apiGroups": ["batch"], "resources": ["jobs/status"], "verbs": ["get"]},
    ]


def test_no_kind_of_job_brings_more_than_itself() -> None:
    for rule in rules(tuple(FRAMEWORKS)):
        assert len(rule["apiGroups"]) == len(rule["resources"]) == 1
        assert "*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"]
        assert "" not in rule["apiGroups"]  # no Secrets, pods, nodes: the core group
        assert "deletecollection" not in rule["verbs"]
        if rule["resources"][0].endswith("/status") and rule["apiGroups"] != ["kueue.x-k8s.io"]:
            assert rule["verbs"] == ["get"]
    assert rules(("batch/job", "batch/job")) == rules(("batch/job",))


def test_the_bootstrap_account_can_hand_on_multikueues_rights_and_nothing_more() -> None:
    found = documents("hub-uid", "east", namespace="ours", frameworks=tuple(FRAMEWORKS))
    by_kind = {each["kind"]: each for each in found}
    assert list(by_kind) == [
        *("Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role"),
        "RoleBinding",
    ]
    mine = names.bootstrap("hub-uid", "east")
    assert {each["metadata"]["name"] for each in found[1:]} == {mine}
    held = by_kind["ClusterRole"]["rules"]
    assert held[3:] == rules(tuple(FRAMEWORKS))
    text = yaml.safe_dump(found)
    assert not any(word in text for word in ("escalate", "bind\n", "impersonate", "'*'"))


def test_it_changes_and_deletes_only_what_it_makes_itself() -> None:
    found = documents("hub-uid", "east", namespace="ours", frameworks=DEFAULT_FRAMEWORKS)
    made = names.account("hub-uid", "east")
    mine = names.bootstrap("hub-uid", "east")
    kueues = {rule["resources"][0] for rule in rules(DEFAULT_FRAMEWORKS)}
    reach = {
        (kind, tuple(rule["resources"])): rule.get("resourceNames")
        for each in found
        if (kind := each["kind"]) in ("Role", "ClusterRole")
        for rule in each["rules"]
        if {"patch", "delete"} & set(rule["verbs"]) and rule["resources"][0] not in kueues
    }
    assert reach == {
        ("ClusterRole", ("clusterroles", "clusterrolebindings")): [made],
        ("Role", ("serviceaccounts",)): [made],
        ("Role", ("secrets",)): None,  # in a namespace of our own, empty ones
    }
    [tokens] = [
        rule["resourceNames"]
        for each in found
        if each["kind"] == "Role"
        for rule in each["rules"]
        if rule["resources"] == ["serviceaccounts/token"]
    ]
    assert tokens == [made, mine]
    other = documents("hub-uid", "west", namespace="ours", frameworks=DEFAULT_FRAMEWORKS)
    assert not {each["metadata"]["name"] for each in other[1:]} & {mine}


def test_on_the_hub_secrets_are_within_reach_in_two_namespaces_and_under_one_name() -> None:
    reach = [
        (each["kind"], each["metadata"].get("namespace", ""), rule.get("resourceNames"))
        for each in deployed()
        if each["kind"] in ("Role", "ClusterRole")
        for rule in each["rules"]
        if "secrets" in rule["resources"]
    ]
    assert sorted(reach, key=str) == [
        ("ClusterRole", "", ["berthmaster-multikueue"]),
        ("Role", "berth-credentials", None),
        ("Role", "kueue-system", None),
    ]
    mine = one("Role", "berthmaster-credentials")["rules"]
    assert [rule["verbs"] for rule in mine if "secrets" in rule["resources"]] == [
        ["list", "watch", "patch"]
    ]


def test_its_pod_runs_as_its_own_account_without_privilege() -> None:
    objects = deployed()
    [deployment] = [each for each in objects if each["kind"] == "Deployment"]
    spec = deployment["spec"]["template"]["spec"]
    assert spec["serviceAccountName"] == "berth-credentials"
    assert spec["securityContext"]["runAsNonRoot"] is True
    [container] = spec["containers"]
    assert container["image"].partition(":")[0] == "berthmaster/credentials"
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    accounts = {
        subject["name"]
        for each in objects
        if each["kind"].endswith("Binding")
        for subject in each["subjects"]
    }
    assert accounts == {"berth-credentials"}


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--frameworks", "batch/cronjob"], "one or several, with commas between them, of"),
        (["--selector", "a in"], "a label selector such as"),
        (["--lifetime-s", "60"], "--lifetime-s"),
        (["--source", "vault"], "--source"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(flags: list[str], problem: str) -> None:
    with pytest.raises(click.UsageError) as caught:
        load(CredentialsSettings, "credentials", flags)
    assert problem in caught.value.format_message()


def test_a_grace_as_long_as_the_time_between_renewals_is_refused_at_the_start() -> None:
    settings = load(CredentialsSettings, "credentials", ["--renew-after-s", "60"])
    log = Log("credentials", stream=io.BytesIO())
    ctx = Context("x", settings, log=log, metrics=Metrics("x"), health=Health())
    with pytest.raises(CannotStart) as caught:
        asyncio.run(main(ctx))
    assert "--renew-after-s 60 must be more than --grace-s 60" in str(caught.value)


def test_the_defaults_are_the_ones_that_the_page_tells() -> None:
    settings = load(CredentialsSettings, "credentials")
    assert settings.frameworks == DEFAULT_FRAMEWORKS
    assert (settings.lifetime_s, settings.times.grace_s, settings.source) == (86_400, 60, "auto")
