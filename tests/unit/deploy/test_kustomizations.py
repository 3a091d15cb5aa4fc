"""deploy/kubernetes as it would be applied: what the pods may, and that the pieces fit together."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from berthmaster.bus.permissions import inbox_prefix
from berthmaster.cli import secret
from berthmaster.cli.cluster_commands import NAMESPACE
from berthmaster.doctor.rights import AGENT_ACCOUNT, HUB_ACCOUNT
from berthmaster.telemetry.settings import TelemetrySettings
from berthmaster.usage.settings import UsageSettings
from tests.support.environment import load_with
from tests.support.kustomize import Manifest, render
from tests.support.patience import hang_s

DEPLOY = Path(__file__).parents[3] / "deploy" / "kubernetes"
FOLDERS = (
    *("agent", "agent/telemetry", "external", "placement", "credentials", "dashboard"),
    *("overlays/observe", "overlays/dispatch", "overlays/agent-login"),
    "nominations",
)
PODS = ("agent", "overlays/dispatch", "placement", "credentials")
WEBHOOKS = DEPLOY / "webhooks"
HUB = DEPLOY / "overlays/dispatch"
COMPONENTS = {
    **dict.fromkeys(("login", "admission", "karmada", "webhooks", "own-nats"), "overlays/dispatch"),
    "../ocm/hub": "overlays/dispatch",
    **dict.fromkeys(("agent/login", "agent/dcgm", "../ocm/agent"), "agent"),
}


def one(objects: list[Manifest], kind: str, name: str = "") -> Manifest:
    """The one object of a kind, or of that name."""
    found = [each for each in objects if each["kind"] == kind]
    [match] = [each for each in found if not name or each["metadata"]["name"] == name]
    return match


def pod_of(objects: list[Manifest]) -> dict[str, Any]:
    """The pod's template."""
    [found] = [each for each in objects if each["kind"] in ("Deployment", "StatefulSet")]
    template: dict[str, Any] = found["spec"]["template"]
    return template


def container_of(objects: list[Manifest], name: str) -> dict[str, Any]:
    """The container of this name."""
    spec = pod_of(objects)["spec"]
    [found] = [
        each
        for each in (*spec.get("initContainers", ()), *spec["containers"])
        if each["name"] == name
    ]
    return dict(found)


def ordered(objects: list[Manifest]) -> list[str]:
    """Whatever the order of objects, and of lists in which items go by a name."""
    return sorted(json.dumps(sorted_within(each), sort_keys=True) for each in objects)


def sorted_within(value: Any) -> Any:
    """The same with such lists in the order of the names; init containers run in their own."""
    if isinstance(value, dict):
        return {
            name: [sorted_within(one) for one in each]
            if name == "initContainers"
            else sorted_within(each)
            for name, each in value.items()
        }
    if isinstance(value, list):
        items = [sorted_within(each) for each in value]
        for key in ("mountPath", "name"):
            if all(isinstance(each, dict) and key in each for each in items):
                return sorted(items, key=lambda each: str(each[key]))
        return items
    return value


def kustomized(folder: Path) -> list[Manifest]:
    """As people get it."""
    done = subprocess.run(
        ["kubectl", "kustomize", str(folder)],
        capture_output=True,
        text=True,
        check=True,
        timeout=hang_s(),
    )
    return list(yaml.safe_load_all(done.stdout))


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl")
def test_kustomize_renders_the_same_as_the_tests_do(folder: str) -> None:
    assert ordered(kustomized(DEPLOY / folder)) == ordered(render(DEPLOY / folder))


@pytest.mark.parametrize("component", COMPONENTS)
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl")
def test_kustomize_adds_a_component_as_the_tests_do(component: str, tmp_path: Path) -> None:
    base = DEPLOY / COMPONENTS[component]
    own = {
        "resources": [os.path.relpath(base, tmp_path)],
        "components": [os.path.relpath(DEPLOY / component, tmp_path)],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(own))
    assert ordered(kustomized(tmp_path)) == ordered(render(base, DEPLOY / component))


def test_with_webhooks_a_hub_reads_their_file_and_keys_and_gets_out_to_those_who_are_told() -> None:
    objects, without = render(HUB, WEBHOOKS), render(HUB)
    container, before = (container_of(each, "usage") for each in (objects, without))
    # All else of the hub is as it was.
    [setting] = [each for each in container["env"] if each not in before["env"]]
    [mount] = [each for each in container["volumeMounts"] if each not in before["volumeMounts"]]
    volumes = pod_of(without)["spec"]["volumes"]
    [volume] = [each for each in pod_of(objects)["spec"]["volumes"] if each not in volumes]
    added = {"env": [setting], "volumeMounts": [mount]}
    assert container == before | {name: [*more, *before[name]] for name, more in added.items()}

    # The file stands where the usage service looks for it, and the Secret must be there.
    ours = {setting["name"]: setting["value"]}
    settings = load_with(UsageSettings, "usage", ours)
    assert settings.webhooks_file is not None
    assert settings.webhooks_file.parent == Path(mount["mountPath"])
    assert mount["readOnly"] is True
    assert (volume["name"], volume["secret"].get("optional", False)) == (mount["name"], False)
    assert volume["secret"]["defaultMode"] & 0o007 == 0

    # Out to anywhere but a cloud's metadata, by https, and nobody comes in by it.
    [policy] = [each for each in objects if each["kind"] == "NetworkPolicy" and each not in without]
    spec = policy["spec"]
    assert (
        spec["podSelector"]["matchLabels"].items() <= pod_of(objects)["metadata"]["labels"].items()
    )
    assert (spec["policyTypes"], "ingress" in spec) == (["Egress"], False)
    [rule] = spec["egress"]
    assert [port["port"] for port in rule["ports"]] == [443]
    closed = {left for to in rule["to"] for left in to["ipBlock"]["except"]}
    assert closed == {"169.254.0.0/16", "fe80::/10"}


@pytest.mark.parametrize("folder", PODS)
def test_a_pod_has_no_privilege_and_can_write_only_where_it_must(folder: str) -> None:
    objects = render(DEPLOY / folder)
    labels = one(objects, "Namespace")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    spec = pod_of(objects)["spec"]
    assert spec["securityContext"] | {"fsGroupChangePolicy": ""} == {
        "runAsNonRoot": True,
        "runAsUser": 10001,
        "runAsGroup": 10001,
        "fsGroup": 10001,
        "fsGroupChangePolicy": "",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}
        assert container["resources"]["limits"].keys() == {"memory"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    kinds = {next(iter(set(each) - {"name"})) for each in spec["volumes"]}
    assert kinds <= {"emptyDir", "projected", "secret"}


def test_the_pods_of_nodes_see_processes_and_the_kubelet_and_can_do_nothing_to_either() -> None:
    objects = render(DEPLOY / "agent/telemetry")
    labels = one(objects, "Namespace")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "privileged"
    account = one(objects, "ServiceAccount")
    assert account["automountServiceAccountToken"] is False
    assert {each["kind"] for each in objects} == {
        *("Namespace", "ServiceAccount", "DaemonSet", "NetworkPolicy")
    }  # no right of any kind
    spec = one(objects, "DaemonSet")["spec"]["template"]["spec"]
    assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == (
        account["metadata"]["name"],
        False,
    )
    assert (spec["hostPID"], spec.get("hostNetwork"), spec.get("hostIPC")) == (True, None, None)
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    [container] = spec["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {"cpu", "memory"} == container["resources"]["limits"].keys()
    of_the_host = {
        each["name"]: each["hostPath"]["path"] for each in spec["volumes"] if "hostPath" in each
    }
    assert of_the_host == {"proc": "/proc", "pod-resources": "/var/lib/kubelet/pod-resources"}
    mounts = {each["name"]: each for each in container["volumeMounts"]}
    assert all(mounts[name]["readOnly"] for name in of_the_host)


def test_the_pods_of_nodes_take_from_their_secret_what_cluster_add_puts_there() -> None:
    its = yaml.safe_load(
        secret.manifest_of_nodes(cluster="ber.lin", url="tls://h:4222", creds="ST", ca="CA")
    )
    objects = render(DEPLOY / "agent/telemetry")
    daemon_set = one(objects, "DaemonSet")
    assert its["metadata"]["namespace"] == daemon_set["metadata"]["namespace"]
    spec = daemon_set["spec"]["template"]["spec"]
    [container] = spec["containers"]
    given = {"BERTH_TELEMETRY_NODE": "n1"}
    for each in container["env"]:
        source = each.get("valueFrom", {})
        if key := source.get("secretKeyRef"):
            assert key["name"] == secret.TELEMETRY_NAME
            given[each["name"]] = its["stringData"][key["key"]]
        elif "value" in each:
            given[each["name"]] = each["value"]
    ours = {name: value for name, value in given.items() if name.startswith("BERTH_")}
    settings = load_with(TelemetrySettings, "telemetry", ours)
    assert (settings.cluster, settings.node, settings.source) == ("ber.lin", "n1", "nvml")
    assert settings.inbox_prefix == inbox_prefix("telemetry.ber=2Elin")
    mounts = {each["name"]: Path(each["mountPath"]) for each in container["volumeMounts"]}
    assert settings.proc == mounts["proc"]
    assert settings.kubelet == mounts["pod-resources"] / "kubelet.sock"
    [volume] = [each["secret"] for each in spec["volumes"] if "secret" in each]
    files = {mounts["key"] / item["path"] for item in volume["items"]}
    assert files == {settings.nats_creds_file, settings.nats_ca_file}
    assert {item["key"] for item in volume["items"]} <= its["stringData"].keys()


@pytest.mark.parametrize("folder", [*PODS, "agent/telemetry", "external"])
def test_network_policies_name_who_comes_in_and_where_a_pod_may_go(folder: str) -> None:
    policies = [each for each in render(DEPLOY / folder) if each["kind"] == "NetworkPolicy"]
    assert policies
    for spec in (each["spec"] for each in policies):
        assert all(rule.get("from") and rule.get("ports") for rule in spec["ingress"])
        if folder != "external":  # it opens one port more of a pod that the hub's own one closes
            assert spec["policyTypes"] == ["Ingress", "Egress"]
            assert all(rule["ports"] for rule in spec["egress"])
            out = {port["port"] for rule in spec["egress"] for port in rule["ports"]}
            assert out <= {53, 443, 6443, 4222}


@pytest.mark.parametrize(
    ("folder", "account"),
    [
        ("agent", AGENT_ACCOUNT),
        ("overlays/dispatch", HUB_ACCOUNT),
        ("placement", "berth-placement"),
    ],
)
def test_the_account_is_bound_to_roles_that_are_there(folder: str, account: str) -> None:
    objects = render(DEPLOY / folder)
    assert pod_of(objects)["spec"]["serviceAccountName"] == account
    assert one(objects, "ServiceAccount")["metadata"] == {
        "name": account,
        "namespace": NAMESPACE,
        "labels": one(objects, "ServiceAccount")["metadata"]["labels"],
    }
    roles = {each["metadata"]["name"] for each in objects if each["kind"] == "ClusterRole"}
    bindings = [each for each in objects if each["kind"] == "ClusterRoleBinding"]
    for binding in bindings:
        assert binding["roleRef"]["name"] in roles
        subject = {"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}
        assert binding["subjects"] == [subject]
    assert bindings
    if account == AGENT_ACCOUNT:  # in each namespace by a command of `berth cluster add`
        assert secret.EXECUTOR_ROLE in roles
        assert secret.EXECUTOR_ROLE not in {each["roleRef"]["name"] for each in bindings}


def test_overlay_gives_the_hub_its_mode_and_the_rights_of_no_other() -> None:
    for mode in ("observe", "dispatch"):
        objects = render(DEPLOY / "overlays" / mode)
        assert one(objects, "ConfigMap")["data"] == {"BERTH_MULTIKUEUE_MODE": mode}
        bound = {
            each["roleRef"]["name"] for each in objects if each["kind"] == "ClusterRoleBinding"
        }
        others = {"observe", "dispatch"} - {mode}
        assert not {f"berthmaster-multikueue-{other}" for other in others} & bound
        reads = {"configMapRef": {"name": "berth-hub-mode", "optional": True}}
        containers = pod_of(objects)["spec"]["containers"]
        assert [each["name"] for each in containers if reads in each["envFrom"]] == ["multikueue"]


def _rules() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every rule of a Role in deploy/kubernetes, with its file."""
    for path in sorted(DEPLOY.rglob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            if document and document.get("kind") in ("Role", "ClusterRole"):
                for rule in document["rules"]:
                    yield str(path.relative_to(DEPLOY)), rule


def test_rule_about_secrets_names_each_of_them_but_for_credentials() -> None:
    open_ = {
        path
        for path, rule in _rules()
        if {"secrets", "*"} & set(rule["resources"]) and not rule.get("resourceNames")
    }
    assert open_ == {"credentials/rbac.yaml"}  # whose task they are, in namespaces of its own


def test_rule_that_a_policy_narrows_ships_with_the_policy() -> None:
    makes = {
        (path, resource)
        for path, rule in _rules()
        for resource in {"services", "overridepolicies"} & set(rule["resources"])
        if {"create", "patch", "update", "*"} & set(rule["verbs"])
    }
    assert makes == {
        ("agent/executor-rbac.yaml", "services"),
        ("karmada/rbac.yaml", "overridepolicies"),
    }
    for file in ("agent/executor-policy.yaml", "karmada/rbac.yaml"):
        documents = [each for each in yaml.safe_load_all((DEPLOY / file).read_text()) if each]
        kinds = {each["kind"]: each for each in documents}
        policy = kinds["ValidatingAdmissionPolicy"]
        binding = kinds["ValidatingAdmissionPolicyBinding"]
        assert policy["spec"]["failurePolicy"] == "Fail"
        assert binding["spec"]["policyName"] == policy["metadata"]["name"]
        assert binding["spec"]["validationActions"] == ["Deny"]
    agent = render(DEPLOY / "agent")
    assert "ValidatingAdmissionPolicyBinding" in {each["kind"] for each in agent}
