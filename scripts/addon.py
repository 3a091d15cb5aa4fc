"""Write deploy/ocm/addon.yaml: the agent of the chart as an addon of Open Cluster Management.

`helm template berth-agent deploy/chart -n berth-system -f deploy/ocm/addon-values.yaml | python -m
scripts.addon` writes the file. A test holds the file to the chart. With the argument v1beta1 the
objects go to standard output, in that version of OCM's API.
"""

import sys
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parent.parent
FILE: Final = ROOT / "deploy" / "ocm" / "addon.yaml"
VALUES: Final = ROOT / "deploy" / "ocm" / "addon-values.yaml"
NAME: Final = "berthmaster-agent"
NAMESPACE: Final = "berth-system"
API: Final = "addon.open-cluster-management.io"
ABOUT: Final = """\
# Made by scripts/addon.py: Berthmaster's agent as an addon of Open Cluster Management, with the
# values of addon-values.yaml. It needs nothing of the hub's API, hence no registration. Its Secret,
# berth-agent, comes another way: docs/integrations/ocm.md says which.
"""
# OCM makes them in the order of the list.
FIRST: Final = ("Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding")
VERSIONS: Final = ("v1alpha1", "v1beta1")
TEMPLATE: Final = {"group": API, "resource": "addontemplates"}
DEPLOYMENT: Final = {"group": API, "resource": "addondeploymentconfigs"}
# The configurations that the addon takes, as each version spells them.
CONFIGS: Final[dict[str, Any]] = {
    "v1alpha1": {"supportedConfigs": [TEMPLATE | {"defaultConfig": {"name": NAME}}, DEPLOYMENT]},
    "v1beta1": {"defaultConfigs": [TEMPLATE | {"name": NAME}]},
}
Manifest = dict[str, Any]


def text(objects: list[Manifest], version: str = VERSIONS[0]) -> str:
    """Return the file for these objects of the chart, in a version of OCM's API."""
    level = {"pod-security.kubernetes.io/enforce": "restricted"}
    part = {"app.kubernetes.io/part-of": "berthmaster"}
    namespace = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": NAMESPACE, "labels": part | level},
    }
    manifests = sorted([namespace, *objects], key=_order)
    for one in manifests:
        if one["kind"] == "Namespace":  # Secrets of others are in it
            one["metadata"]["annotations"] = {f"{API}/deletion-orphan": ""}
    meta = {"name": NAME, "labels": part | {"app.kubernetes.io/component": "agent"}}
    template = {
        "apiVersion": f"{API}/{version}",
        "kind": "AddOnTemplate",
        "metadata": meta,
        "spec": {"addonName": NAME, "agentSpec": {"workload": {"manifests": manifests}}},
    }
    addon = {
        "apiVersion": f"{API}/{version}",
        "kind": "ClusterManagementAddOn",
        "metadata": meta | {"annotations": {f"{API}/lifecycle": "addon-manager"}},
        "spec": {
            "addOnMeta": {
                "displayName": "Berthmaster agent",
                "description": "Live inventory of GPUs, jobs that Berthmaster places here, and "
                "what the cluster claims of itself.",
            },
            **CONFIGS[version],
            "installStrategy": {"type": "Manual"},
        },
    }
    dumped = [
        yaml.dump(one, Dumper=_Plain, sort_keys=False, width=110) for one in (template, addon)
    ]
    return ABOUT + "---\n".join(dumped)


def _order(one: Manifest) -> tuple[int, str, str]:
    kind = one["kind"]
    place = FIRST.index(kind) if kind in FIRST else len(FIRST)
    return place, kind, one["metadata"]["name"]


class _Plain(yaml.SafeDumper):  # type: ignore[misc] # yaml has no types
    def ignore_aliases(self, data: Any) -> bool:
        """What stands in several places is written out in each."""
        return True


if __name__ == "__main__":
    rendered = [each for each in yaml.safe_load_all(sys.stdin) if each]
    if not rendered:
        sys.exit("no manifests on standard input; right is: helm template … | scripts/addon.py")
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    if wanted and wanted not in VERSIONS:
        sys.exit(f"{wanted}: no version of OCM's API; there are {', '.join(VERSIONS)}")
    if wanted:
        sys.stdout.write(text(rendered, wanted))
    else:
        FILE.write_text(text(rendered))
