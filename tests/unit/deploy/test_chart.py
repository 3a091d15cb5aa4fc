"""The chart as an operator gets it: what the pods may, that its parts fit together, and what values
cannot be."""

import copy
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from berthmaster.cli.cluster import secret
from berthmaster.cli.cluster.commands import NAMESPACE
from berthmaster.cli.doctor.rights import AGENT_ACCOUNT, HUB_ACCOUNT
from berthmaster.control.usage.settings import UsageSettings
from berthmaster.hub.clearing.server import LIMIT_S, PATH
from berthmaster.hub.clearing.settings import ClearingSettings
from berthmaster.hub.credentials.plugins import read_providers
from berthmaster.lib.access.permissions import inbox_prefix
from berthmaster.lib.kueue.names import CLEARING_CONFIGURATION
from berthmaster.lib.supervisor.hub_folder import CLEARING_SECRET
from berthmaster.lib.supervisor.hub_keys import HubKeysSettings
from berthmaster.services import SERVICES
from berthmaster.worker.shares.settings import SharesSettings
from berthmaster.worker.telemetry.settings import TelemetrySettings
from scripts.images import TARGETS
from tests.support.chart import CHART, DEPLOY, Manifest, Values, one, pod_of, render, run_helm
from tests.support.environment import load_with

EXAMPLES: Final = sorted((CHART / "examples").glob("*.yaml"))
POD_OWNERS: Final = ("Deployment", "StatefulSet")
EVERYTHING: Final[Values] = {
    "bus": {"external": {"names": ["hub.example.com"], "loadBalancer": True}},
    "hub": {
        "mode": "dispatch",
        "services": ["login", "admission", "karmada", "ocm"],
        "webhooks": True,
        "namespaces": ["ml"],
        "kubeconfigSecrets": ["multikueue-east"],
        "profileNamespaces": ["fleet"],
    },
    "worker": {"services": ["claims"], "telemetry": "nodes", "namespaces": ["ml", "research"]},
    **{
        name: {"enabled": True, "replicas": 2} for name in ("placement", "credentials", "dashboard")
    },
    "clearing": {"by": "webhook"},
}


def everything() -> list[Manifest]:
    """All that the chart can make in one cluster."""
    return render("both", EVERYTHING)


def template(*argv: str) -> str:
    """What helm says of values that cannot be; "" = it renders them."""
    argv = ("template", "berth", str(CHART), "-n", NAMESPACE, "--kube-version", "1.36.3", *argv)
    done = run_helm(*argv)
    return done.stderr if done.returncode else ""


def test_chart_has_the_version_of_the_code() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]["version"]
    assert (chart["version"], chart["appVersion"]) == (version, version)


def test_every_service_is_in_the_table_or_is_no_pod() -> None:
    table = yaml.safe_load((CHART / "services.yaml").read_text())
    there = {name for side in table.values() for name in side} | {"accounts"}
    assert there == set(SERVICES) - {"emulator", "shares"}  # the latter is on nodes only
    assert there | {"nats", "emulator", "shares"} == set(TARGETS)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_passes_lint_and_renders(example: Path) -> None:
    flags = ("--values", str(example))
    linted = run_helm("lint", "--strict", "--kube-version", "1.36.3", str(CHART), *flags)
    assert linted.returncode == 0, linted.stdout + linted.stderr
    assert template(*flags) == ""


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ("role=hbu", "at '/role': value must be one of 'hub', 'worker', 'both', 'standalone'"),
        ("hub.mode=order", "at '/hub/mode': value must be one of 'observe', 'dispatch'"),
        ("hub.service={ocm}", "at '/hub': additional properties 'service' not allowed"),
        ("hub.services={scorer}", "at '/hub/services/0': value must be one of 'login', 'karmada'"),
        ("bus.replicas=2", "at '/bus/replicas': value must be one of 1, 3, 5"),
        ("bus.mode=existing", "bus.url is empty: bus.mode existing needs tls://HOST:PORT"),
        ("bus.url=tls://h:4222", 'bus.url is "tls://h:4222": it goes with bus.mode existing'),
        ("bus.url=nats://h:4222", "at '/bus/url': 'nats://h:4222' does not match pattern"),
        ("image.digests.gateway=sha256:12", "at '/image/digests/gateway': 'sha256:12' does not"),
        ("hub.namespaces={ml}", "hub.namespaces needs hub.mode dispatch; hub.mode is observe"),
        ("hub.settings.LOG=x", "at '/hub/settings': additional properties 'LOG' not allowed"),
        ("worker.namespaces={Ml}", "at '/worker/namespaces/0': 'Ml' does not match pattern"),
        ("clearing.by=gate", "at '/clearing/by': value must be one of 'auto', 'policy', 'webhook'"),
        (
            "hub.mode=dispatch,clearing.by=webhook,bus.mode=existing,bus.url=tls://h:4222",
            "bus.issuer.name is empty: with bus.mode existing, the webhook",
        ),
        ("worker.replicas=0", "at '/worker/replicas': minimum: got 0, want 1"),
        (
            "role=standalone,hub.services={ocm}",
            'hub.services names "ocm", which needs role hub or both; role is standalone',
        ),
    ],
)
def test_value_that_cannot_be_is_named(values: str, why: str) -> None:
    assert why in template("--set", values)


def test_kubernetes_without_sidecars_is_refused() -> None:
    done = run_helm("template", "berth", str(CHART), "--kube-version", "1.28.0")
    assert "requires kubeVersion: >=1.29.0-0 which is incompatible with" in done.stderr


DISPATCHES: Final[Values] = {"hub": {"mode": "dispatch"}}


def clears(kubernetes: str, by: str, values: Values = DISPATCHES) -> list[Manifest]:
    """The objects that clear nominations."""
    objects = render("hub", {**values, "clearing": {"by": by}}, kubernetes=kubernetes)
    kinds = ("MutatingAdmissionPolicy", "MutatingWebhookConfiguration", "Deployment")
    return [each for each in objects if each["kind"] in kinds]


@pytest.mark.parametrize(
    ("kubernetes", "by", "kinds"),
    [
        ("1.36.3", "auto", ["MutatingAdmissionPolicy"]),
        ("1.35.4-gke.1", "auto", ["Deployment", "MutatingWebhookConfiguration"]),
        ("1.36.3", "webhook", ["Deployment", "MutatingWebhookConfiguration"]),
        ("1.35.4", "none", []),
    ],
)
def test_what_clears_nominations_follows_the_kubernetes_version(
    kubernetes: str, by: str, kinds: list[str]
) -> None:
    assert sorted(each["kind"] for each in clears(kubernetes, by)) == kinds
    assert clears(kubernetes, by, {}) == []  # mode observe


def test_policy_before_1_36_is_refused() -> None:
    argv = ("template", "berth", str(CHART), "--kube-version", "1.35.4")
    done = run_helm(*argv, values={**DISPATCHES, "clearing": {"by": "policy"}})
    assert "clearing.by is policy, which needs Kubernetes 1.36; this one is v1.35.4" in done.stderr


def test_webhook_is_asked_where_the_policy_would_act_and_fails_as_it_does() -> None:
    [policy] = clears("1.36.3", "auto")
    objects = render("hub", DISPATCHES, kubernetes="1.35.4")
    [hook] = one(objects, "MutatingWebhookConfiguration")["webhooks"]
    spec = policy["spec"]
    assert hook["rules"] == spec["matchConstraints"]["resourceRules"]
    for field in ("matchConditions", "failurePolicy", "reinvocationPolicy"):
        assert hook[field] == spec[field]
    assert (hook["sideEffects"], hook["admissionReviewVersions"]) == ("None", ["v1"])
    assert hook["timeoutSeconds"] > LIMIT_S
    service = hook["clientConfig"]["service"]
    assert (service["name"], service["path"]) == ("berth-clearing", PATH)
    [port] = one(objects, "Service", "berth-clearing")["spec"]["ports"]
    policy_ = one(objects, "NetworkPolicy", "berth-clearing")["spec"]
    [container] = pod_of(objects, "berth-clearing")["spec"]["containers"]
    given = {each["name"]: each["value"] for each in container["env"]}
    settings = load_with(ClearingSettings, "clearing", given)
    assert port["port"] == service["port"]
    assert settings.port == port["targetPort"]
    assert [{"port": settings.port}] in [rule["ports"] for rule in policy_["ingress"]]
    assert {"mountPath": str(settings.certificate_dir)}.items() <= {
        key: each[key]
        for each in container["volumeMounts"]
        if each["name"] == CLEARING_SECRET
        for key in each
    }.items()
    # No right and no token: what it decides on comes with the question.
    account = one(objects, "ServiceAccount", "berth-clearing")
    bound = [each for each in objects if account["metadata"]["name"] in str(each.get("subjects"))]
    assert (account["automountServiceAccountToken"], bound) == (False, [])


def test_webhooks_certificate_is_by_the_hubs_authority_or_cert_managers() -> None:
    own = render("hub", DISPATCHES, kubernetes="1.35.4")
    keys = pod_of(own, "berth-accounts")["spec"]["initContainers"][0]
    settings = load_with(
        HubKeysSettings, "hub", {each["name"]: each["value"] for each in keys["env"]}
    )
    assert settings.clearing == f"berth-clearing.{NAMESPACE}.svc"
    assert CLEARING_SECRET in one(own, "Role", "berthmaster-keys")["rules"][0]["resourceNames"]
    assert one(own, "Secret", CLEARING_SECRET).get("data") is None
    role = one(own, "ClusterRole", CLEARING_CONFIGURATION)
    assert role["rules"] == [
        {
            "apiGroups": ["admissionregistration.k8s.io"],
            "resources": ["mutatingwebhookconfigurations"],
            "resourceNames": [one(own, "MutatingWebhookConfiguration")["metadata"]["name"]],
            "verbs": ["patch"],
        }
    ]
    values = {**DISPATCHES, "bus": {"issuer": {"name": "ca", "kind": "ClusterIssuer"}}}
    given = render("hub", values, kubernetes="1.35.4")
    made = one(given, "Certificate", "berth-clearing")["spec"]
    assert (made["secretName"], made["dnsNames"]) == (CLEARING_SECRET, [settings.clearing])
    notes = one(given, "MutatingWebhookConfiguration")["metadata"]["annotations"]
    assert notes == {"cert-manager.io/inject-ca-from": f"{NAMESPACE}/berth-clearing"}
    names = {(each["kind"], each["metadata"]["name"]) for each in given}
    assert ("Secret", CLEARING_SECRET) not in names
    assert ("ClusterRole", CLEARING_CONFIGURATION) not in names


def test_images_come_by_digest_where_there_is_one() -> None:
    digest = f"sha256:{'a' * 64}"
    image = {"registry": "registry.example/berth", "tag": "1.2", "digests": {"gateway": digest}}
    objects = render("hub", {"image": {**image, "pullSecrets": ["mine"]}})
    spec = pod_of(objects, "berth-hub")["spec"]
    images = {each["name"]: each["image"] for each in spec["containers"]}
    assert images["gateway"] == f"registry.example/berth/gateway:1.2@{digest}"
    assert images["scorer"] == "registry.example/berth/scorer:1.2"
    assert spec["imagePullSecrets"] == [{"name": "mine"}]


def test_own_resources_are_over_the_tables() -> None:
    values = {"resources": {"resolver": {"limits": {"memory": "4Gi"}}}}
    containers = pod_of(render("hub", values), "berth-hub")["spec"]["containers"]
    [resolver] = [each for each in containers if each["name"] == "resolver"]
    assert resolver["resources"] == {
        "requests": {"cpu": "50m", "memory": "96Mi"},
        "limits": {"memory": "4Gi"},
    }


def test_standalone_has_no_rights_and_asks_no_api_server_but_for_its_keys() -> None:
    objects = render("standalone")
    kinds = {each["kind"] for each in objects}
    assert not kinds & {"ClusterRole", "ClusterRoleBinding"}
    assert [one(objects, "Role")["rules"]] == [
        [
            {
                "apiGroups": [""],
                "resources": ["secrets"],
                "resourceNames": ["berth-bus", "berth-hub-keys", "berth-hub-signers"],
                "verbs": ["patch"],
            }
        ]
    ]
    names = {each["name"] for each in pod_of(objects, "berth-hub")["spec"]["containers"]}
    assert not names & {"inventory", "multikueue"}


def test_objects_have_one_name_each_and_stand_in_our_namespaces() -> None:
    objects = everything()
    assert all({"apiVersion", "kind", "metadata"} <= each.keys() for each in objects)
    names = [
        (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"])
        for each in objects
    ]
    assert len(set(names)) == len(names)
    ours = {NAMESPACE, "berth-telemetry", "berth-credentials"}
    outside = {name for kind, name, _ in names if kind not in ("Role", "RoleBinding")} - {None}
    assert outside == ours
    # Rights alone reach into others.
    assert {name for _, name, _ in names} - {None} - ours == {
        *("kueue-system", "ml", "research", "fleet")
    }


def test_pods_have_no_privilege_and_can_write_only_where_they_must() -> None:
    seen = set()
    for owner in everything():
        if owner["kind"] not in POD_OWNERS:
            continue
        seen.add(owner["metadata"]["name"])
        spec = owner["spec"]["template"]["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"] == {
            "runAsNonRoot": True,
            "runAsUser": 10001,
            "runAsGroup": 10001,
            "fsGroup": 10001,
            "fsGroupChangePolicy": "OnRootMismatch",
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
    assert seen == {
        *("berth-hub", "berth-accounts", "berth-nats", "berth-agent"),
        *("berth-placement", "berth-credentials", "berth-dashboard", "berth-clearing"),
    }


def test_pods_of_which_there_are_several_have_a_budget() -> None:
    objects = everything()
    several = {
        each["metadata"]["name"]
        for each in objects
        if each["kind"] in POD_OWNERS and each["spec"]["replicas"] > 1
    }
    budgets = {
        each["metadata"]["name"]: each["spec"]
        for each in objects
        if each["kind"] == "PodDisruptionBudget"
    }
    assert budgets.keys() == several >= {"berth-nats", "berth-placement"}
    for name, spec in budgets.items():
        assert spec["maxUnavailable"] == 1
        assert spec["selector"]["matchLabels"] == {"app.kubernetes.io/name": name}


def test_with_webhooks_a_hub_reads_their_file_and_keys() -> None:
    objects, without = render("hub", {"hub": {"webhooks": True}}), render("hub")

    def usage(found: list[Manifest]) -> Manifest:
        containers = pod_of(found, "berth-hub")["spec"]["containers"]
        return next(each for each in containers if each["name"] == "usage")

    before, after = usage(without), usage(objects)
    [variable] = [each for each in after["env"] if each not in before["env"]]
    [mount] = [each for each in after["volumeMounts"] if each not in before["volumeMounts"]]
    settings = load_with(UsageSettings, "usage", {variable["name"]: variable["value"]})
    assert settings.webhooks_file is not None
    assert settings.webhooks_file.parent == Path(mount["mountPath"])
    assert mount["readOnly"] is True
    volumes = pod_of(objects, "berth-hub")["spec"]["volumes"]
    [volume] = [each for each in volumes if each["name"] == mount["name"]]
    assert volume["secret"]["secretName"] == "berth-hub-webhooks"
    assert volume["secret"].get("optional", False) is False
    assert volume["secret"]["defaultMode"] & 0o007 == 0
    # https out of the hub's pod is open in any case; all else is as it was.
    assert one(objects, "NetworkPolicy", "berth-hub") == one(without, "NetworkPolicy", "berth-hub")


def nodes() -> list[Manifest]:
    """The objects of the agents on nodes."""
    objects = render("worker", {"worker": {"telemetry": "nodes"}})
    return [
        each
        for each in objects
        if "berth-telemetry" in (each["metadata"].get("namespace"), each["metadata"]["name"])
    ]


def test_pods_of_nodes_see_processes_and_kubelet_and_change_neither() -> None:
    objects = nodes()
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
    assert of_the_host == {
        "proc": "/proc",
        "cgroup": "/sys/fs/cgroup",
        "pod-resources": "/var/lib/kubelet/pod-resources",
    }
    mounts = {each["name"]: each for each in container["volumeMounts"]}
    assert all(mounts[name]["readOnly"] for name in of_the_host)


def test_device_plugin_has_the_hosts_paths_and_reaches_nobody() -> None:
    objects = render("worker", {"worker": {"shares": "mps", "runtimeClass": "nvidia"}})
    daemon_set = one(objects, "DaemonSet", "berth-shares")
    assert daemon_set["spec"]["updateStrategy"] == {"type": "OnDelete"}
    spec = daemon_set["spec"]["template"]["spec"]
    assert (spec["runtimeClassName"], spec["automountServiceAccountToken"]) == ("nvidia", False)
    [container] = spec["containers"]
    ours = {
        each["name"]: each["value"] for each in container["env"] if each["name"].startswith("BERTH")
    }
    settings = load_with(SharesSettings, "shares", ours)
    assert settings.way == "mps"
    # Pods mount folders of the state from the host, so both know it by the same path.
    host = {
        each["name"]: each["hostPath"]["path"] for each in spec["volumes"] if "hostPath" in each
    }
    inside = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert host["kubelet"] == inside["kubelet"] == str(settings.kubelet_dir)
    assert host["state"] == inside["state"] == str(settings.state_dir)
    assert (host["shm"], inside["shm"]) == (str(settings.state_dir / "shm"), "/dev/shm")
    policy = one(objects, "NetworkPolicy", "berth-shares")["spec"]
    assert (sorted(policy["policyTypes"]), policy.get("egress")) == (["Egress", "Ingress"], None)
    assert "at '/worker/shares': value must be one of" in template(
        "--set", "role=worker,worker.shares=cuda"
    )


def test_pods_of_nodes_take_from_their_secret_what_cluster_add_puts_there() -> None:
    its = yaml.safe_load(
        secret.manifest_of_nodes(cluster="ber.lin", url="tls://h:4222", creds="ST", ca="CA")
    )
    daemon_set = one(nodes(), "DaemonSet")
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


def test_network_policies_name_who_comes_in_and_where_a_pod_may_go() -> None:
    objects = everything()
    policies = [each for each in objects if each["kind"] == "NetworkPolicy"]
    pods = {
        each["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/name"]
        for each in objects
        if each["kind"] in (*POD_OWNERS, "DaemonSet")
    }
    selected = [each["spec"]["podSelector"]["matchLabels"] for each in policies]
    assert sorted(labels["app.kubernetes.io/name"] for labels in selected) == sorted(pods)
    for spec in (each["spec"] for each in policies):
        assert spec["policyTypes"] == ["Ingress", "Egress"]
        assert all(rule.get("from") and rule.get("ports") for rule in spec["ingress"])
        assert all(rule["ports"] for rule in spec["egress"])
        out = {port["port"] for rule in spec["egress"] for port in rule["ports"]}
        assert out <= {53, 443, 6443, 4222, 5443, 6222, 8222}


def test_bus_is_open_to_other_clusters_only_where_values_say_so() -> None:
    def addresses(objects: list[Manifest]) -> list[str]:
        rules = one(objects, "NetworkPolicy", "berth-nats")["spec"]["ingress"]
        return [
            each["ipBlock"]["cidr"] for rule in rules for each in rule["from"] if "ipBlock" in each
        ]

    assert addresses(render("hub")) == []
    external = {"loadBalancer": True, "cidrs": ["192.0.2.0/24"]}
    opened = render("hub", {"bus": {"external": external}})
    assert addresses(opened) == ["192.0.2.0/24"]
    assert one(opened, "Service", "berth-nats-external")["spec"]["type"] == "LoadBalancer"


@pytest.mark.parametrize(
    ("owner", "account"),
    [
        ("berth-agent", AGENT_ACCOUNT),
        ("berth-hub", HUB_ACCOUNT),
        ("berth-placement", "berth-placement"),
        ("berth-accounts", "berth-accounts"),
    ],
)
def test_account_is_bound_to_roles_that_are_there(owner: str, account: str) -> None:
    objects = everything()
    assert pod_of(objects, owner)["spec"]["serviceAccountName"] == account
    assert one(objects, "ServiceAccount", account)["metadata"]["namespace"] == NAMESPACE
    roles = {
        (each["kind"], each["metadata"]["name"])
        for each in objects
        if each["kind"] in ("ClusterRole", "Role")
    }
    subject = {"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}
    bindings = [each for each in objects if subject in each.get("subjects", ())]
    assert bindings
    for binding in bindings:
        assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) in roles
        assert binding["subjects"] == [subject]


def test_team_namespaces_are_bound_one_by_one() -> None:
    bound = {
        (each["metadata"]["namespace"], each["roleRef"]["name"])
        for each in everything()
        if each["kind"] == "RoleBinding" and each["metadata"]["namespace"] in ("ml", "research")
    }
    assert bound == {
        *((name, secret.EXECUTOR_ROLE) for name in ("ml", "research")),
        *((name, secret.FIGURES_ROLE) for name in ("ml", "research")),
        ("ml", "berthmaster-multikueue-dispatching"),
    }
    everywhere = {
        each["roleRef"]["name"] for each in everything() if each["kind"] == "ClusterRoleBinding"
    }
    assert not everywhere & {
        *(secret.EXECUTOR_ROLE, secret.FIGURES_ROLE, "berthmaster-multikueue-dispatching")
    }


@pytest.mark.parametrize("mode", ["observe", "dispatch"])
def test_hub_has_the_rights_of_its_mode_and_of_no_other(mode: str) -> None:
    objects = render("hub", {"hub": {"mode": mode}})
    roles = {each["metadata"]["name"] for each in objects if each["kind"] == "ClusterRole"}
    others = {"observe", "dispatch"} - {mode}
    assert f"berthmaster-multikueue-{mode}" in roles
    assert not {f"berthmaster-multikueue-{other}" for other in others} & roles
    containers = pod_of(objects, "berth-hub")["spec"]["containers"]
    told = {"name": "BERTH_MULTIKUEUE_MODE", "value": mode}
    assert [each["name"] for each in containers if told in each["env"]] == ["multikueue"]


def _rules() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every rule of a Role that the chart can make, with the Role's name."""
    for values in (EVERYTHING, {**EVERYTHING, "hub": {"services": ["admission"]}}):
        for each in render("both", values):
            if each["kind"] in ("Role", "ClusterRole"):
                for rule in each["rules"]:
                    yield each["metadata"]["name"], rule


def test_rule_about_secrets_names_each_of_them_but_for_credentials() -> None:
    open_ = {
        name
        for name, rule in _rules()
        if {"secrets", "*"} & set(rule["resources"]) and not rule.get("resourceNames")
    }
    # Whose task they are, in namespaces of its own.
    assert open_ == {"berthmaster-credentials", "berthmaster-credentials-kubeconfigs"}
    assert not any(
        "*" in [*rule["resources"], *rule["verbs"], *rule["apiGroups"]] for _, rule in _rules()
    )


def test_rule_that_a_policy_narrows_ships_with_the_policy() -> None:
    makes = {
        (name, resource)
        for name, rule in _rules()
        for resource in {"services"} & set(rule["resources"])
        if {"create", "patch", "update", "*"} & set(rule["verbs"])
    }
    assert makes == {(secret.EXECUTOR_ROLE, "services")}
    karmada = list(yaml.safe_load_all((DEPLOY / "policies" / "karmada.yaml").read_text()))
    for documents in (render("worker"), karmada):
        policy = one(documents, "ValidatingAdmissionPolicy")
        binding = one(documents, "ValidatingAdmissionPolicyBinding")
        assert policy["spec"]["failurePolicy"] == "Fail"
        assert binding["spec"]["policyName"] == policy["metadata"]["name"]
        assert binding["spec"]["validationActions"] == ["Deny"]


def test_providers_of_credentials_are_the_only_plugins_in_the_pod(tmp_path: Path) -> None:
    command = "/plugins/secretreader/bin/secretreader-plugin"
    wanted = {"apiVersion": "client.authentication.k8s.io/v1", "command": command}
    image = "registry.example.com/secretreader:v1"
    listed = [
        {"name": "secretreader", "image": image, "execConfig": wanted},
        {"name": "by-kueue"},
    ]
    values = {
        "credentials": {"enabled": True, "providers": listed},
        "hub": {"profileNamespaces": ["fleet"]},
    }
    documents = render("hub", values)
    text = one(documents, "ConfigMap", "berth-credentials-providers")["data"]["providers.yaml"]
    path = tmp_path / "providers.yaml"
    path.write_text(text)
    found = read_providers(path)
    assert {name: run and run.command for name, run in found.items()} == {
        "secretreader": command,
        "by-kueue": None,
    }
    pod = pod_of(documents, "berth-credentials")["spec"]
    [container] = pod["containers"]
    told = {"name": "BERTH_CREDENTIALS_ACCESS_PROVIDERS"}
    told["value"] = "/etc/berth-providers/providers.yaml"
    assert told in container["env"]
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert (mounts["providers"], mounts["plugin-secretreader"]) == (
        "/etc/berth-providers",
        "/plugins/secretreader",
    )
    images = [each["image"] for each in pod["volumes"] if "image" in each]
    assert images == [{"reference": image, "pullPolicy": "IfNotPresent"}]
    bound = one(documents, "RoleBinding", "berthmaster-credentials-profiles")
    assert bound["metadata"]["namespace"] == "fleet"
    plain = render("hub", {"credentials": {"enabled": True}})
    assert not any("providers" in str(each) for each in plain if each["kind"] == "Deployment")


def test_changed_settings_restart_the_pods_that_read_them() -> None:
    for role, owner, side in (("hub", "berth-hub", "hub"), ("worker", "berth-agent", "worker")):
        before = pod_of(render(role), owner)
        settings = {"BERTH_LOG_LEVEL": "debug", "BERTH_X": 3, "BERTH_Y": True}
        objects = render(role, {side: {"settings": settings}})
        after = copy.deepcopy(pod_of(objects, owner))
        assert before != after
        data = one(objects, "ConfigMap", owner)["data"]
        assert data == {"BERTH_LOG_LEVEL": "debug", "BERTH_X": "3", "BERTH_Y": "true"}


def test_certificate_of_cert_manager_takes_the_place_of_ours() -> None:
    names = ["hub.example.com", "192.0.2.7", "2001:db8::7"]
    bus = {"issuer": {"name": "ours", "kind": "ClusterIssuer"}, "external": {"names": names}}
    objects = render("hub", {"bus": bus})
    spec = one(objects, "Certificate")["spec"]
    assert spec["dnsNames"] == [
        "hub.example.com",
        "berth-nats.berth-system.svc",
        "*.berth-nats-peers.berth-system.svc",
    ]
    assert spec["ipAddresses"] == ["192.0.2.7", "2001:db8::7"]
    assert {"server auth", "client auth"} == set(spec["usages"])
    for owner in ("berth-nats", "berth-hub", "berth-accounts"):
        assert spec["secretName"] in json.dumps(pod_of(objects, owner)), owner
    own = render("hub", {"bus": {"external": {"names": names}}})
    assert "Certificate" not in {each["kind"] for each in own}
