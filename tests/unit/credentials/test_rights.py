"""The least rights, and that what deploy/ lets a bootstrap account hand on is just that."""

import asyncio
import io
from pathlib import Path

import pytest
import yaml

from berthmaster.credentials.rights import DEFAULT_FRAMEWORKS, FRAMEWORKS, rules
from berthmaster.credentials.service import main
from berthmaster.credentials.settings import CredentialsSettings
from berthmaster.runtime.errors import CannotStart, SettingsError
from berthmaster.runtime.health import Health
from berthmaster.runtime.log import Log
from berthmaster.runtime.metrics import Metrics
from berthmaster.runtime.service import Context
from berthmaster.runtime.settings import load
from tests.support.kustomize import Manifest, render

DEPLOY = Path(__file__).parents[3] / "deploy" / "kubernetes"


def one(folder: str, kind: str, name: str) -> Manifest:
    found = [
        each
        for each in render(DEPLOY / folder)
        if (each["kind"], each["metadata"]["name"]) == (kind, name)
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
    held = one("bootstrap", "ClusterRole", "berthmaster-bootstrap")["rules"]
    wanted = rules(tuple(FRAMEWORKS))
    assert [{**rule, "verbs": sorted(rule["verbs"])} for rule in held[2:]] == wanted
    assert [rule["resources"] for rule in held[:2]] == [
        ["clusterroles", "clusterrolebindings"],
        ["namespaces"],
    ]
    assert held[1]["verbs"] == ["get"]
    text = yaml.safe_dump(list(render(DEPLOY / "bootstrap")))
    assert "escalate" not in text
    assert "bind\n" not in text
    assert "impersonate" not in text
    inside = one("bootstrap", "Role", "berthmaster-bootstrap")["rules"]
    secrets = [rule["verbs"] for rule in inside if rule["resources"] == ["secrets"]]
    assert secrets == [["list", "create", "delete"]]


def test_on_the_hub_secrets_are_within_reach_in_two_namespaces_and_under_one_name() -> None:
    reach = [
        (each["kind"], each["metadata"].get("namespace", ""), rule.get("resourceNames"))
        for each in render(DEPLOY / "credentials")
        if each["kind"] in ("Role", "ClusterRole")
        for rule in each["rules"]
        if "secrets" in rule["resources"]
    ]
    assert sorted(reach, key=str) == [
        ("ClusterRole", "", ["berthmaster-multikueue"]),
        ("Role", "berth-system", None),
        ("Role", "kueue-system", None),
    ]
    mine = one("credentials", "Role", "berthmaster-credentials")["rules"]
    assert [rule["verbs"] for rule in mine if "secrets" in rule["resources"]] == [["list", "watch"]]


def test_its_pod_runs_as_its_own_account_without_privilege() -> None:
    objects = render(DEPLOY / "credentials")
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
    with pytest.raises(SettingsError) as caught:
        load(CredentialsSettings, "credentials", flags, {})
    assert problem in " ".join(caught.value.problems)


def test_a_grace_as_long_as_the_time_between_renewals_is_refused_at_the_start() -> None:
    settings = load(CredentialsSettings, "credentials", ["--renew-after-s", "60"], {})
    log = Log("credentials", stream=io.BytesIO())
    ctx = Context("x", settings, log=log, metrics=Metrics("x"), health=Health())
    with pytest.raises(CannotStart) as caught:
        asyncio.run(main(ctx))
    assert "--renew-after-s 60 must be more than --grace-s 60" in str(caught.value)


def test_the_defaults_are_the_ones_that_the_page_tells() -> None:
    settings = load(CredentialsSettings, "credentials", [], {})
    assert settings.frameworks == DEFAULT_FRAMEWORKS
    assert (settings.lifetime_s, settings.times.grace_s, settings.source) == (86_400, 60, "auto")
