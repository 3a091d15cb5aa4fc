"""deploy/ocm: the addon is the agent of the chart with claims, and rights name what is."""

from typing import Any

import yaml

from berthmaster.hub.ocm.core.policy import DEFAULT_NAME
from berthmaster.lab.controlplane.api import documents
from berthmaster.lib.kube.resources import ADD_ON_PLACEMENT_SCORES, CLUSTER_CLAIMS, Resource
from berthmaster.worker.claims.core.claims import NAMES
from scripts import addon
from tests.support.chart import DEPLOY, Manifest, render, rights

OCM = DEPLOY / "ocm"


def of_kind(objects: list[Manifest], kind: str) -> Manifest:
    [found] = [each for each in objects if each["kind"] == kind]
    return found


def carried() -> list[Manifest]:
    """What the addon brings to a managed cluster."""
    template = of_kind(documents(OCM / "addon.yaml"), "AddOnTemplate")
    manifests: list[Manifest] = template["spec"]["agentSpec"]["workload"]["manifests"]
    return manifests


def rules(side: str, name: str, service: str) -> list[dict[str, Any]]:
    """What the chart grants for a service on this side."""
    [found] = rights(name, role=side, values={side: {"services": [service]}})
    granted: list[dict[str, Any]] = found["rules"]
    return granted


def may(told: list[dict[str, Any]], resource: Resource, part: str = "") -> dict[str, set[str]]:
    """verb -> names, "*" for any."""
    plural = f"{resource.plural}/{part}" if part else resource.plural
    found: dict[str, set[str]] = {}
    for rule in told:
        if resource.group in rule["apiGroups"] and plural in rule["resources"]:
            for verb in rule["verbs"]:
                found.setdefault(verb, set()).update(rule.get("resourceNames", ["*"]))
    return found


def test_addon_is_the_agent_of_the_chart() -> None:
    values = yaml.safe_load(addon.VALUES.read_text())
    wanted = addon.text(render(values.pop("role"), values))
    stale = "stale: scripts/addon.py says how the file is written"
    assert addon.FILE.read_text() == wanted, stale
    containers = of_kind(carried(), "Deployment")["spec"]["template"]["spec"]["containers"]
    assert "claims" in {each["name"] for each in containers}
    assert of_kind(carried(), "DaemonSet")


def test_addon_in_v1beta1_has_the_template_as_its_default_config() -> None:
    values = yaml.safe_load(addon.VALUES.read_text())
    objects = render(values.pop("role"), values)
    old, new = (list(yaml.safe_load_all(addon.text(objects, each))) for each in addon.VERSIONS)
    assert {each["apiVersion"] for each in new} == {f"{addon.API}/v1beta1"}
    assert of_kind(new, "AddOnTemplate")["spec"] == of_kind(old, "AddOnTemplate")["spec"]
    before, after = (of_kind(each, "ClusterManagementAddOn") for each in (old, new))
    [config] = after["spec"].pop("defaultConfigs")
    del before["spec"]["supportedConfigs"]
    assert config == {"group": addon.API, "resource": "addontemplates", "name": addon.NAME}
    assert after == before | {"apiVersion": f"{addon.API}/v1beta1"}


def test_the_addon_has_one_name_and_its_template_is_the_default() -> None:
    objects = documents(addon.FILE)
    template = of_kind(objects, "AddOnTemplate")
    whole = of_kind(objects, "ClusterManagementAddOn")
    example = of_kind(documents(OCM / "addon-example.yaml"), "ManagedClusterAddOn")
    name = whole["metadata"]["name"]
    assert template["spec"]["addonName"] == example["metadata"]["name"] == name
    assert whole["metadata"]["annotations"] == {
        "addon.open-cluster-management.io/lifecycle": "addon-manager"
    }
    [config, deployment] = whole["spec"]["supportedConfigs"]
    assert config["defaultConfig"] == {"name": template["metadata"]["name"]}
    assert deployment == {"group": config["group"], "resource": "addondeploymentconfigs"}
    assert "registration" not in template["spec"]  # the agent needs nothing of the hub's API


def test_the_example_of_a_deployment_config_means_the_agents_container_image_and_namespace() -> (
    None
):
    spec = of_kind(documents(OCM / "addon-config-example.yaml"), "AddOnDeploymentConfig")["spec"]
    deployment = of_kind(carried(), "Deployment")
    containers = deployment["spec"]["template"]["spec"]["containers"]
    [needs] = spec["resourceRequirements"]
    [container] = [each for each in containers if needs["containerID"].endswith(each["name"])]
    meta = deployment["metadata"]
    assert needs["containerID"] == f"deployments:{meta['name']}:{container['name']}"
    assert needs["resources"].keys() == container["resources"].keys()
    assert container["image"].startswith(spec["registries"][0]["source"] + "/")
    # Its default is another namespace than that of the agent's Secret.
    assert spec["agentInstallNamespace"] == meta["namespace"]
    assert spec["nodePlacement"]["nodeSelector"]  # without, tolerations are not heeded


def test_on_the_hub_only_the_one_name_can_be_read_and_written() -> None:
    told = rules("hub", "berthmaster-ocm-hub", "ocm")
    assert may(told, ADD_ON_PLACEMENT_SCORES) == {
        "get": {DEFAULT_NAME},
        "list": {DEFAULT_NAME},
        "watch": {DEFAULT_NAME},
        "create": {"*"},
    }
    assert may(told, ADD_ON_PLACEMENT_SCORES, "status") == {"patch": {DEFAULT_NAME}}
    assert not [rule for rule in told if {"delete", "update", "*"} & set(rule["verbs"])]


def test_in_a_managed_cluster_only_our_claims_can_be_written() -> None:
    told = may(rules("worker", "berthmaster-claims", "claims"), CLUSTER_CLAIMS)
    assert told == {
        "get": {"*"},
        "list": {"*"},
        "watch": {"*"},
        "create": {"*"},
        "patch": set(NAMES),
    }
