"""Images pushed to a registry, and saved for a site without a network; and what the chart makes of
the values that this writes."""

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import docker
import pytest
import yaml
from docker.errors import ImageNotFound

from berthmaster.lib.runtime.ports import free_ports
from scripts.registry import CYCLONEDX, OCI_INDEX, OCI_MANIFEST
from tests.containers.conftest import BUILD_LIMIT_S, ROOT, TAG
from tests.support.chart import pod_of, render
from tests.support.patience import hang_s, wait_until

pytestmark = pytest.mark.timeout(3600)  # the first test builds all images
PUSHED: Final = ("gateway", "scorer")


@pytest.fixture(scope="module")
def registry(images: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A registry on loopback, where an engine speaks HTTP."""
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("no docker-registry here (Debian: apt install docker-registry)")
    folder = tmp_path_factory.mktemp("registry")
    [port] = free_ports(1)
    config = {
        "version": 0.1,
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        "http": {"addr": f"127.0.0.1:{port}"},
    }
    (folder / "config.yml").write_text(yaml.safe_dump(config))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [program, "serve", str(folder / "config.yml")], stdout=log, stderr=log
        )
    try:
        wait_until(lambda: _answers(port), "the registry answers")
        yield f"127.0.0.1:{port}/berth"
    finally:
        process.terminate()
        process.wait(hang_s())


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/", timeout=5):
            return True
    except OSError:
        time.sleep(0.05)
        return False


def run(*argv: str) -> "subprocess.CompletedProcess[str]":
    """scripts/images, for two images."""
    return subprocess.run(
        [sys.executable, "-m", "scripts.images", "--tag", TAG, *argv, *PUSHED],
        cwd=ROOT,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=BUILD_LIMIT_S,
        check=False,
    )


def test_pushed_images_are_pulled_by_the_digests_that_the_chart_takes(
    registry: str, tmp_path: Path
) -> None:
    file = tmp_path / "values" / "images.yaml"
    done = run("--push", registry, "--values", str(file))
    assert done.returncode == 0, done.stderr
    values: dict[str, Any] = yaml.safe_load(file.read_text())
    digests = values["image"]["digests"]
    assert done.stdout.splitlines() == [
        f"{registry}/{target}:{TAG} {digests[target]}" for target in PUSHED
    ]
    containers = pod_of(render("hub", values), "berth-hub")["spec"]["containers"]
    named = {each["name"]: each["image"] for each in containers}
    assert named["door"] == f"{registry}/door:{TAG}"
    client = docker.from_env()
    try:
        for target in PUSHED:
            built = client.images.get(f"berthmaster/{target}:{TAG}").id
            client.images.remove(f"{registry}/{target}:{TAG}")
            assert named[target] == f"{registry}/{target}:{TAG}@{digests[target]}"
            client.images.pull(f"{registry}/{target}", digests[target])
            assert client.images.get(f"{registry}/{target}@{digests[target]}").id == built
    finally:
        client.close()


def test_pushed_image_has_its_packages_as_a_referrer(registry: str, tmp_path: Path) -> None:
    file = tmp_path / "images.yaml"
    for _ in range(2):  # a second push of the same image adds nothing
        done = run("--push", registry, "--values", str(file))
        assert done.returncode == 0, done.stderr
    digests = yaml.safe_load(file.read_text())["image"]["digests"]
    host, _, path = registry.partition("/")
    for target in PUSHED:

        def got(what: str, target: str = target) -> Any:
            request = urllib.request.Request(f"http://{host}/v2/{path}/{target}/{what}")
            request.add_header("Accept", f"{OCI_INDEX}, {OCI_MANIFEST}")
            with urllib.request.urlopen(request, timeout=hang_s()) as reply:
                return json.load(reply)

        [listed] = got(f"manifests/{digests[target].replace(':', '-')}")["manifests"]
        assert listed["artifactType"] == CYCLONEDX
        referrer = got(f"manifests/{listed['digest']}")
        assert referrer["subject"]["digest"] == digests[target]
        [layer] = referrer["layers"]
        named = {each["name"] for each in got(f"blobs/{layer['digest']}")["components"]}
        assert {"nats-py", "msgspec"} <= named
        assert "mkdocs-material" not in named


def test_saved_images_are_loaded_and_pushed_elsewhere_without_a_build(
    registry: str, tmp_path: Path
) -> None:
    archive, file = tmp_path / "berth.tar", tmp_path / "images.yaml"
    done = run("--save", str(archive))
    assert done.returncode == 0, done.stderr
    client = docker.from_env()
    try:
        before = {name: client.images.get(f"berthmaster/{name}:{TAG}").id for name in PUSHED}
        for name in PUSHED:
            client.images.remove(f"berthmaster/{name}:{TAG}", force=True)
            with pytest.raises(ImageNotFound):
                client.images.get(f"berthmaster/{name}:{TAG}")
        flags = ("--load", str(archive), "--push", f"{registry}/site", "--values", str(file))
        done = run(*flags)
        assert done.returncode == 0, done.stderr
        assert "MiB, " not in done.stderr  # nothing was built
        assert {
            name: client.images.get(f"berthmaster/{name}:{TAG}").id for name in PUSHED
        } == before
    finally:
        client.close()
    assert yaml.safe_load(file.read_text())["image"]["registry"] == f"{registry}/site"


def test_registry_that_refuses_is_named_and_no_values_are_written(
    images: str, tmp_path: Path
) -> None:
    [port] = free_ports(1)
    file = tmp_path / "images.yaml"
    done = run("--push", f"127.0.0.1:{port}/berth", "--values", str(file))
    assert done.returncode == 1
    assert f"images: pushing 127.0.0.1:{port}/berth/gateway:{TAG}:" in done.stderr
    assert "connection refused" in done.stderr
    assert not file.exists()
