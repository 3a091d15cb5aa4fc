"""The pods of both sides: each service has a container with its own key, port and settings."""

from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from berthmaster.bus.permissions import inbox_prefix
from berthmaster.bus.setup import SetupSettings
from berthmaster.cli import secret
from berthmaster.cli.cluster_commands import NAMESPACE
from berthmaster.cli.serve import find
from berthmaster.supervisor.hub_folder import SERVICE_NAME, USERS, prepare
from scripts.images import TARGETS
from scripts.monitoring import SCRAPED
from tests.support.containers import API_MOUNT, volume_mounts
from tests.support.environment import load_with
from tests.support.kustomize import Manifest, render

DEPLOY: Final = Path(__file__).parents[3] / "deploy" / "kubernetes"
OCM: Final = DEPLOY.parent / "ocm"
HUB_COMPONENTS: Final = (
    *(DEPLOY / name for name in ("login", "karmada", "admission")),
    OCM / "hub",
)
AGENT_COMPONENTS: Final = (DEPLOY / "agent/dcgm", OCM / "agent", DEPLOY / "agent/login")
PIPELINE: Final = {"gateway", "resolver", "scorer", "archivist", "usage", "door", "accounts"}
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
PORTS: Final = {name: 8081 + number for number, name in enumerate(SCRAPED)}
Container = dict[str, Any]


def pod_of(objects: list[Manifest]) -> dict[str, Any]:
    [owner] = [each for each in objects if each["kind"] in ("Deployment", "StatefulSet")]
    template: dict[str, Any] = owner["spec"]["template"]
    return template


def hub(*components: Path) -> dict[str, Any]:
    return pod_of(render(DEPLOY / "overlays/dispatch", *components))


def agent(*components: Path) -> dict[str, Any]:
    return pod_of(render(DEPLOY / "agent", *components))


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
        (hub(), {*PIPELINE, "inventory", "multikueue"}),
        (
            hub(*HUB_COMPONENTS),
            {*PIPELINE, "inventory", "multikueue", "login", "karmada", "admission", "ocm"},
        ),
        (agent(), {"inventory", "executor", "figures"}),
        (agent(*AGENT_COMPONENTS[:2]), {"inventory", "executor", "figures", "telemetry", "ocm"}),
    ],
    ids=["hub", "hub with components", "agent", "agent with components"],
)
def test_service_has_a_container_with_its_image_port_and_probes(
    pod: dict[str, Any], services: set[str]
) -> None:
    found = containers(pod)
    assert found.keys() == services
    for name, container in found.items():
        assert container["image"] == f"berthmaster/{name}:dev"
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
        (hub(*HUB_COMPONENTS), ""),
        (agent(*AGENT_COMPONENTS[:2]), "agent.ber=2Elin"),
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
        assert settings.nats_url == ("tls://h:4222" if user else "tls://127.0.0.1:4222")
        mounts = {each["mountPath"] for each in container["volumeMounts"]}
        for file in (settings.nats_creds_file, settings.nats_ca_file):
            assert file is not None
            assert {str(file), str(file.parent)} & mounts, name
        if user:
            assert getattr(settings, "cluster", "") == "ber.lin"
            assert getattr(settings, "namespaces", None) in (None, ("ml", "research"))


def test_hub_container_mounts_its_own_key_and_no_other() -> None:
    pod = hub(*HUB_COMPONENTS)
    for name, container in containers(pod, "containers", "initContainers").items():
        parts = set(volume_mounts(container, "data").values())
        if name in ("keys", "accounts"):  # with operator.seed they have every key
            assert "" in parts
            continue
        keys = {part for part in parts if part.startswith("keys/")}
        wanted = {"nats": set(), "login": {"keys/login.creds", "keys/login"}}
        assert keys == wanted.get(name, {f"keys/{name}.creds"})
        assert "" not in parts
        secrets = {
            each["name"]: each["secret"]["secretName"]
            for each in pod["spec"]["volumes"]
            if "secret" in each
        }
        used = {
            secrets[each["name"]] for each in container["volumeMounts"] if each["name"] in secrets
        }
        assert used <= {f"berth-hub-{name}"}
        # Only what a service remembers is written.
        written = {
            each["subPath"]
            for each in container["volumeMounts"]
            if each["name"] == "data" and not each.get("readOnly")
        }
        own = {"usage": {"usage"}, "nats": {"accounts", "jetstream"}}
        assert written <= own.get(name, {f"memory/{name}"})


def test_only_containers_that_ask_an_api_server_have_a_token() -> None:
    for pod, wanted in (
        (hub(*HUB_COMPONENTS), {"inventory", "multikueue", "login", "admission", "ocm"}),
        (agent(*AGENT_COMPONENTS), {"inventory", "executor", "figures", "ocm"}),
    ):
        assert pod["spec"]["automountServiceAccountToken"] is False
        every = containers(pod, "initContainers", "containers")
        assert {name for name, each in every.items() if volume_mounts(each, "api")} == wanted
        for name in wanted:
            assert volume_mounts(every[name], "api") == {API_MOUNT: ""}
        [api] = [each["projected"] for each in pod["spec"]["volumes"] if each["name"] == "api"]
        paths = [
            *(each["serviceAccountToken"]["path"] for each in api["sources"][:1]),
            *(each["configMap"]["items"][0]["path"] for each in api["sources"][1:2]),
            *(each["downwardAPI"]["items"][0]["path"] for each in api["sources"][2:]),
        ]
        assert paths == ["token", "ca.crt", "namespace"]


def test_prepared_folder_has_what_the_hubs_containers_mount(tmp_path: Path) -> None:
    prepare(tmp_path, login=True)
    pod = hub(*HUB_COMPONENTS)
    every = containers(pod, "initContainers", "containers")
    for container in every.values():
        for part in volume_mounts(container, "data").values():
            assert (tmp_path / part).exists(), part
    # nats-server's configuration names nothing that its container does not mount.
    config = (tmp_path / "nats-server.conf").read_text()
    named = {word.strip('",') for word in config.split() if str(tmp_path) in word}
    mounted = [f"/data/{part}" for part in volume_mounts(every["nats"], "data").values()]
    assert {f"/data/{part}" for part in ("tls/server.crt", "jetstream")} <= {
        word.replace(str(tmp_path), "/data") for word in named
    }
    for word in named:
        path = Path(word.replace(str(tmp_path), "/data"))
        assert any(path == Path(each) or Path(each) in path.parents for each in mounted), word
    assert list(volume_mounts(every["nats"], "data")) == mounted


def test_bus_starts_after_its_keys_and_before_all_services() -> None:
    pod = hub()
    keys, nats, setup = pod["spec"]["initContainers"]
    assert [each["name"] for each in (keys, nats, setup)] == ["keys", "nats", "setup"]
    assert [each.get("restartPolicy") for each in (keys, nats, setup)] == [None, "Always", None]
    assert nats["startupProbe"]["tcpSocket"] == {"port": "nats"}
    given = variables(setup)
    settings = load_with(SetupSettings, "setup", given)
    assert settings.inbox_prefix == inbox_prefix("setup")
    # `kubectl exec` finds the keys where nothing names a container.
    assert pod["metadata"]["annotations"] == {"kubectl.kubernetes.io/default-container": "accounts"}
    assert {*containers(hub(*HUB_COMPONENTS)), "setup"} - set(USERS) == {"login"}


def test_hubs_certificate_is_for_its_service() -> None:
    objects = render(DEPLOY / "overlays/observe")
    [service] = [each for each in objects if each["kind"] == "Service"]
    meta = service["metadata"]
    assert f"{meta['name']}.{meta['namespace']}.svc" == SERVICE_NAME
    for each in (service, *render(DEPLOY / "external")):
        if each["kind"] == "Service":
            assert each["spec"]["selector"].items() <= pod_of(objects)["metadata"]["labels"].items()
            assert [port["targetPort"] for port in each["spec"]["ports"]] == ["nats"]


@pytest.mark.parametrize(
    ("folder", "components"),
    [("overlays/dispatch", HUB_COMPONENTS), ("agent", AGENT_COMPONENTS)],
    ids=["hub", "agent"],
)
def test_network_policy_lets_prometheus_to_the_port_of_each_service(
    folder: str, components: tuple[Path, ...]
) -> None:
    objects = render(DEPLOY / folder, *components)
    pod = pod_of(objects)
    policies = [each["spec"] for each in objects if each["kind"] == "NetworkPolicy"]
    for policy in policies:
        assert policy["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    every = containers(pod, "initContainers", "containers")
    served = {
        port["containerPort"]
        for each in every.values()
        for port in each.get("ports", ())
        if port["name"] != "nats"
    }
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
    from berthmaster.bus.agent_login import AgentLoginSettings

    pod = agent(DEPLOY / "agent/login")
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
    pod = hub(DEPLOY / "own-nats")
    every = containers(pod, "initContainers", "containers")
    assert every.keys() == (PIPELINE - {"accounts"}) | {"setup", "inventory", "multikueue"}
    for name, container in every.items():
        assert volume_mounts(container, "keys") == {
            "/etc/berth/user.creds": f"{name}.creds",
            "/etc/berth/ca.crt": "ca.crt",
        }
        assert not any(
            part.startswith(("keys", "tls")) for part in volume_mounts(container, "data").values()
        )
        assert "BERTH_NATS_URL" not in variables(container)  # the ConfigMap berth-hub says it
        assert {"configMapRef": {"name": "berth-hub", "optional": True}} in container["envFrom"]


def test_operators_find_the_port_of_each_service_in_the_table() -> None:
    text = (DEPLOY.parents[1] / "docs" / "operating.md").read_text()
    assert [name for name, port in PORTS.items() if f"| {port} | {name} |" not in text] == []
