"""The pods of both sides: each service has a container with its own key, port and settings."""

from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from berthmaster.cli.cluster import secret
from berthmaster.cli.cluster.commands import NAMESPACE
from berthmaster.cli.serve import find
from berthmaster.lib.access.permissions import inbox_prefix
from berthmaster.lib.nats.setup import SetupSettings
from berthmaster.lib.supervisor.hub_folder import KEYS_SECRET, SIGNERS_SECRET, parts, prepare
from berthmaster.lib.supervisor.hub_keys import HubKeysSettings
from berthmaster.services import SERVICES
from scripts.images import TARGETS
from tests.support.chart import WITHOUT, Values, pod_of, render
from tests.support.containers import API_MOUNT, volume_mounts
from tests.support.environment import load_with

MORE_OF_A_HUB: Final[Values] = {"hub": {"services": ["login", "karmada", "admission", "ocm"]}}
MORE_OF_AN_AGENT: Final[Values] = {"worker": {"services": ["claims"], "telemetry": "dcgm"}}
LOGGING_IN: Final[Values] = {"worker": {"services": ["claims"], "telemetry": "dcgm", "login": True}}
PIPELINE: Final = {"gateway", "resolver", "scorer", "archivist", "usage", "door"}
BUS: Final = "tls://berth-nats.berth-system.svc:4222"
MADE: Final = yaml.safe_load(
    secret.manifest(
        cluster="ber.lin",
        namespaces=["ml", "research"],
        namespace=NAMESPACE,
        url="tls://h:4222",
        creds="SU",
        ca="CA",
    )
)
PORTS: Final = {row.name: row.port for row in SERVICES.values() if row.port}
Container = dict[str, Any]


def hub(values: Values = WITHOUT) -> dict[str, Any]:
    return pod_of(render("hub", values), "berth-hub")


def agent(values: Values = WITHOUT) -> dict[str, Any]:
    return pod_of(render("worker", values), "berth-agent")


def containers(pod: dict[str, Any], *kinds: str) -> dict[str, Container]:
    """By name; without ``kinds`` those that run beside each other."""
    return {each["name"]: each for kind in kinds or ("containers",) for each in pod["spec"][kind]}


def variables(container: Container) -> dict[str, str]:
    """Its own, with what `berth cluster add` puts into the Secret."""
    found = {}
    for each in container["env"]:
        if "value" in each:
            found[each["name"]] = each["value"]
        else:
            source = each["valueFrom"]["secretKeyRef"]
            assert source["name"] == MADE["metadata"]["name"]
            found[each["name"]] = MADE["stringData"][source["key"]]
    return {name: value for name, value in found.items() if name.startswith("BERTH_")}


@pytest.mark.parametrize(
    ("pod", "services"),
    [
        (hub(), {*PIPELINE, "members", "multikueue"}),
        (
            hub(MORE_OF_A_HUB),
            {*PIPELINE, "members", "multikueue", "login", "karmada", "admission", "ocm"},
        ),
        (agent(), {"inventory", "executor", "figures"}),
        (agent(MORE_OF_AN_AGENT), {"inventory", "executor", "figures", "telemetry", "claims"}),
    ],
    ids=["hub", "hub with components", "agent", "agent with components"],
)
def test_service_has_a_container_with_its_image_port_and_probes(
    pod: dict[str, Any], services: set[str]
) -> None:
    found = containers(pod)
    assert found.keys() == services
    for name, container in found.items():
        assert container["image"] == f"berthmaster/{name}:0.1.0"
        assert name in TARGETS
        assert "command" not in container
        assert container["ports"] == [{"name": name, "containerPort": PORTS[name]}]
        assert variables(container)["BERTH_HTTP_PORT"] == str(PORTS[name])
        for probe, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
            assert container[probe]["httpGet"] == {"path": path, "port": name}
        # A folder of the pod's temporary files each.
        assert volume_mounts(container, "tmp") == {"/tmp": name}


@pytest.mark.parametrize(
    ("pod", "user"),
    [
        (hub(MORE_OF_A_HUB), ""),
        (agent(MORE_OF_AN_AGENT), "agent.ber=2Elin"),
    ],
    ids=["hub", "agent"],
)
def test_container_understands_its_variables_and_connects_as_its_user(
    pod: dict[str, Any], user: str
) -> None:
    for name, container in containers(pod).items():
        given = variables(container)
        kind = find(name).settings
        settings = load_with(kind, name, given)
        assert settings.inbox_prefix == inbox_prefix(user or name)
        assert settings.nats_url == ("tls://h:4222" if user else BUS)
        mounts = {each["mountPath"] for each in container["volumeMounts"]}
        for file in (settings.nats_creds_file, settings.nats_ca_file):
            assert file is not None
            assert {str(file), str(file.parent)} & mounts, name
        if user:
            assert getattr(settings, "cluster", "") == "ber.lin"
            assert getattr(settings, "namespaces", None) in (None, ("ml", "research"))


def test_hub_container_mounts_its_own_key_and_no_other() -> None:
    pod = hub(MORE_OF_A_HUB)
    volumes = {each["name"]: each for each in pod["spec"]["volumes"]}
    for name, container in containers(pod, "containers", "initContainers").items():
        assert volume_mounts(container, "keys") == {
            "/etc/berth/user.creds": f"{name}.creds",
            "/etc/berth/ca.crt": "ca.crt",
        }
        mounted = {each["name"] for each in container["volumeMounts"]}
        secrets = {
            volumes[each]["secret"]["secretName"]
            for each in mounted & volumes.keys()
            if "secret" in volumes[each]
        }
        own = {f"berth-hub-{name}"} | ({SIGNERS_SECRET} if name == "login" else set())
        assert secrets <= own
        # Only what a service remembers is written.
        written = {
            each["subPath"]
            for each in container["volumeMounts"]
            if each["name"] == "data" and not each.get("readOnly")
        }
        assert written <= ({"usage"} if name == "usage" else {f"memory/{name}"})


def test_only_containers_that_ask_an_api_server_have_a_token() -> None:
    for pod, wanted in (
        (hub(MORE_OF_A_HUB), {"members", "multikueue", "login", "admission", "ocm"}),
        (agent(LOGGING_IN), {"inventory", "executor", "figures", "claims"}),
        (pod_of(render("hub"), "berth-accounts"), {"keys"}),
        (pod_of(render("hub"), "berth-nats"), set()),
    ):
        assert pod["spec"]["automountServiceAccountToken"] is False
        every = {
            each["name"]: each
            for kind in ("initContainers", "containers")
            for each in pod["spec"].get(kind, ())
        }
        assert {name for name, each in every.items() if volume_mounts(each, "api")} == wanted
        for name in wanted:
            assert volume_mounts(every[name], "api") == {API_MOUNT: ""}
        if not wanted:
            continue
        [api] = [each["projected"] for each in pod["spec"]["volumes"] if each["name"] == "api"]
        paths = [
            *(each["serviceAccountToken"]["path"] for each in api["sources"][:1]),
            *(each["configMap"]["items"][0]["path"] for each in api["sources"][1:2]),
            *(each["downwardAPI"]["items"][0]["path"] for each in api["sources"][2:]),
        ]
        assert paths == ["token", "ca.crt", "namespace"]


def test_prepared_folder_has_what_the_pods_mount(tmp_path: Path) -> None:
    prepare(tmp_path, url=BUS, names=["berth-nats.berth-system.svc"], login=True)
    made = parts(tmp_path, "own")
    for pod in (hub(MORE_OF_A_HUB), pod_of(render("hub"), "berth-nats")):
        sources = [
            source["secret"]
            for volume in pod["spec"]["volumes"]
            for source in volume.get("projected", {}).get("sources", ())
            if "secret" in source
        ]
        assert sources
        for secret_ in sources:
            assert {item["key"] for item in secret_["items"]} <= made[secret_["name"]].keys()
    # Keys of operators go to no pod.
    assert not [name for name in made[KEYS_SECRET] if name.startswith(("operator", "restorer"))]


def test_keys_container_understands_its_variables() -> None:
    objects = render("hub", {"bus": {"external": {"names": ["hub.example.com"]}}})
    pod = pod_of(objects, "berth-accounts")
    [keys] = pod["spec"]["initContainers"]
    assert keys["restartPolicy"] == "Always"
    assert keys["startupProbe"]["httpGet"] == {"path": "/readyz", "port": "keys"}
    settings = load_with(HubKeysSettings, "hub", variables(keys))
    assert settings.nats_url == BUS
    assert settings.external == ("hub.example.com",)
    assert settings.names == (
        "berth-nats.berth-system.svc",
        "*.berth-nats-peers.berth-system.svc",
    )
    assert len(settings.monitors) == 3
    # `kubectl exec` finds the keys where nothing names a container.
    annotations = pod["metadata"]["annotations"]
    assert annotations == {"kubectl.kubernetes.io/default-container": "accounts"}
    [accounts] = pod["spec"]["containers"]
    given = load_with(find("accounts").settings, "accounts", variables(accounts))
    assert given.inbox_prefix == inbox_prefix("accounts")


def test_streams_are_made_before_all_services_with_as_many_replicas_as_servers() -> None:
    for replicas, wanted in ((1, 1), (3, 3), (5, 3)):
        [setup] = hub({"bus": {"replicas": replicas}})["spec"]["initContainers"]
        settings = load_with(SetupSettings, "setup", variables(setup))
        assert settings.inbox_prefix == inbox_prefix("setup")
        assert settings.replicas == wanted


@pytest.mark.parametrize(
    ("role", "owner", "values"),
    [("hub", "berth-hub", MORE_OF_A_HUB), ("worker", "berth-agent", LOGGING_IN)],
    ids=["hub", "agent"],
)
def test_network_policy_lets_prometheus_to_the_port_of_each_service(
    role: str, owner: str, values: Values
) -> None:
    objects = render(role, values)
    pod = pod_of(objects, owner)
    selector = {"app.kubernetes.io/name": owner}
    policies = [
        each["spec"]
        for each in objects
        if each["kind"] == "NetworkPolicy"
        and each["spec"]["podSelector"]["matchLabels"] == selector
    ]
    for policy in policies:
        assert policy["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    every = containers(pod, "initContainers", "containers")
    served = {port["containerPort"] for each in every.values() for port in each.get("ports", ())}
    [prometheus] = [
        rule
        for policy in policies
        for rule in policy.get("ingress", ())
        if rule["from"] == [{"namespaceSelector": {"matchLabels": {"metrics": "enabled"}}}]
    ]
    assert {port["port"] for port in prometheus["ports"]} == served
    assert all("endPort" not in port for port in prometheus["ports"])


def test_agents_secret_has_what_its_containers_read() -> None:
    pod = agent()
    [volume] = [each["secret"] for each in pod["spec"]["volumes"] if "secret" in each]
    assert volume["secretName"] == MADE["metadata"]["name"]
    assert {item["key"] for item in volume["items"]} <= MADE["stringData"].keys()
    for container in containers(pod).values():
        assert volume_mounts(container, "key") == {"/etc/berth": ""}
        given = variables(container)
        files = {Path("/etc/berth") / item["path"] for item in volume["items"]}
        assert files == {
            Path(given[name]) for name in ("BERTH_NATS_CREDS_FILE", "BERTH_NATS_CA_FILE")
        }


def test_agent_that_logs_in_reads_what_its_first_container_writes() -> None:
    from berthmaster.lib.access.agent_login import AgentLoginSettings

    pod = agent(LOGGING_IN)
    [login] = pod["spec"]["initContainers"]
    assert (login["name"], login["restartPolicy"]) == ("login", "Always")
    assert login["startupProbe"]["httpGet"] == {"path": "/readyz", "port": "login"}
    assert login["ports"] == [{"name": "login", "containerPort": PORTS["login"]}]
    given = variables(login)
    settings = load_with(AgentLoginSettings, "agent-login", given)
    assert settings.cluster == "ber.lin"
    volumes = {each["name"]: each for each in pod["spec"]["volumes"]}
    [token] = [each["serviceAccountToken"] for each in volumes["login"]["projected"]["sources"]]
    assert token["audience"] == "berthmaster"
    assert volume_mounts(login, "login") == {str(settings.token_file.parent): ""}
    assert settings.token_file.name == token["path"]
    assert str(settings.creds_file.parent) in volume_mounts(login, "session")
    with_login = yaml.safe_load(
        secret.manifest(
            cluster="b", namespaces=["ml"], namespace="n", url="u", creds="S", ca="C", login=True
        )
    )["stringData"]
    items = {item["key"]: item["path"] for item in volumes["key"]["secret"]["items"]}
    assert items.keys() <= with_login.keys()
    assert settings.sentinel_file == Path("/etc/berth") / items["sentinel.creds"]
    for container in containers(pod).values():
        assert variables(container)["BERTH_NATS_CREDS_FILE"] == str(settings.creds_file)
        assert volume_mounts(container, "session") == {str(settings.creds_file.parent): ""}


def test_hub_on_another_bus_takes_every_key_from_one_secret() -> None:
    url = "tls://nats.example.com:4333"
    objects = render("hub", {"bus": {"mode": "existing", "url": url}})
    owners = {each["metadata"]["name"] for each in objects if each["kind"] == "StatefulSet"}
    assert owners == {"berth-hub"}  # neither servers nor their accounts
    assert not [each for each in objects if each["kind"] == "Secret"]
    pod = pod_of(objects, "berth-hub")
    [keys] = [each for each in pod["spec"]["volumes"] if each["name"] == "keys"]
    assert {each["secret"]["name"] for each in keys["projected"]["sources"]} == {KEYS_SECRET}
    every = containers(pod, "initContainers", "containers")
    assert every.keys() == PIPELINE | {"setup", "members", "multikueue"}
    assert {variables(each)["BERTH_NATS_URL"] for each in every.values()} == {url}
    [policy] = [each["spec"] for each in objects if each["kind"] == "NetworkPolicy"]
    assert 4333 in {port["port"] for rule in policy["egress"] for port in rule["ports"]}
