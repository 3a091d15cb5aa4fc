"""What is in the images, and what is not."""

import json

import docker
import pytest
from packaging.requirements import Requirement

from berthmaster.lib.engine.scoring.compiled import COMPILED
from berthmaster.services import SERVICES
from scripts.images import requirements
from tests.support.patience import hang_s

# Libraries that are large, and the modules that they bring.
LARGE = {"grpcio": "grpc", "numpy": "numpy", "nvidia-ml-py": "pynvml", "pip": "pip", "rich": "rich"}
pytestmark = pytest.mark.timeout(3600)  # the first test builds all images


def inside(image: str, code: str) -> object:
    """What a piece of Python prints as JSON in a container."""
    client = docker.from_env()
    try:
        output: bytes = client.containers.run(
            image, entrypoint=["python3", "-c", code], remove=True, network_mode="none"
        )
    finally:
        client.close()
    return json.loads(output)


@pytest.mark.parametrize("service", SERVICES)
def test_an_image_starts_its_service_as_its_user_and_says_where_its_port_is(
    images: str, service: str
) -> None:
    client = docker.from_env()
    config = client.images.get(f"berthmaster/{service}:{images}").attrs["Config"]
    client.close()
    assert config["Entrypoint"] == ["berth", "serve", service]
    # A device plugin works in folders of the kubelet's, which are root's.
    assert config["User"] == ("0:0" if service == "shares" else "10001:10001")
    assert config["ExposedPorts"] == {"8080/tcp": {}}
    assert "8080/healthz" in config["Healthcheck"]["Test"][-1]
    assert not [line for line in config["Env"] if "SEED" in line]


def test_only_the_images_that_need_them_carry_the_large_libraries(images: str) -> None:
    code = (
        "import importlib.util as u, json;"
        f"print(json.dumps([n for n in {list(LARGE.values())} if u.find_spec(n)]))"
    )
    needs = {
        service: {Requirement(each).name for each in requirements()[service]}
        for service in SERVICES
    }
    wanted = {
        service: [module for name, module in LARGE.items() if name in needs[service]]
        for service in SERVICES
    }
    found = {service: inside(f"berthmaster/{service}:{images}", code) for service in SERVICES}
    assert found == wanted
    assert wanted["gateway"] == []


def test_an_image_has_no_compiler_and_cannot_write_its_own_code(images: str) -> None:
    code = (
        "import json, os, shutil, berthmaster;"
        "print(json.dumps([os.getuid(), os.access(berthmaster.__path__[0], os.W_OK),"
        " shutil.which('cc'), shutil.which('gcc')]))"
    )
    assert inside(f"berthmaster/gateway:{images}", code) == [10001, False, None, None]


def test_the_engine_is_compiled_there_where_it_is_here(images: str) -> None:
    code = "import json, berthmaster.lib.engine.scoring.compiled as c;print(json.dumps(c.COMPILED))"
    assert inside(f"berthmaster/resolver:{images}", code) == COMPILED


def test_services_share_all_layers_but_their_own_last(images: str) -> None:
    client = docker.from_env()
    layers = {
        service: client.images.get(f"berthmaster/{service}:{images}").attrs["RootFS"]["Layers"]
        for service in SERVICES
    }
    client.close()
    shared = layers["gateway"][:-1]
    assert len(shared) >= 4
    assert all(of[: len(shared)] == shared for of in layers.values())


def test_a_service_with_wrong_settings_says_so_and_ends_with_code_2(images: str) -> None:
    client = docker.from_env()
    container = client.containers.run(
        f"berthmaster/gateway:{images}", ["--nats-url", "carrier-pigeon"], detach=True
    )
    try:
        assert container.wait(timeout=hang_s())["StatusCode"] == 2
        assert "'carrier-pigeon' is not right" in container.logs().decode()
    finally:
        container.remove(force=True)
        client.close()


@pytest.mark.parametrize(
    ("image", "module"),
    [
        ("accounts", "berthmaster.lib.supervisor.hub_keys"),
        ("accounts", "berthmaster.lib.nats.setup"),
        ("inventory", "berthmaster.lib.access.agent_login"),
    ],
)
def test_image_runs_the_commands_that_the_chart_gives_it(
    images: str, image: str, module: str
) -> None:
    client = docker.from_env()
    try:
        told: bytes = client.containers.run(
            f"berthmaster/{image}:{images}",
            entrypoint=["python3", "-m", module, "--help"],
            remove=True,
            network_mode="none",
        )
    finally:
        client.close()
    assert b"--nats-url" in told
