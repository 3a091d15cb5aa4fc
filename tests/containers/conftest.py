"""An engine, the images, and keys; a tier without an engine is skipped with the reason."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from docker.errors import DockerException

from berthmaster.lib.access.keys import make_keys
from tests.containers.compose import Stack

ROOT = Path(__file__).resolve().parent.parent.parent
TAG = "test"
CONTAINER_UID = 10001  # of deploy/Dockerfile
BUILD_LIMIT_S = 3000  # a hang; a busy machine takes a third of it
# What takes minutes or hours in earnest and must be seen to be permitted here.
IN_A_HURRY = {
    "archivist": {"BERTH_ARCHIVIST_STORY_AFTER_S": "2", "BERTH_ARCHIVIST_DECISION_AFTER_S": "20"},
    "resolver": {"BERTH_RESOLVER_SNAPSHOT_S": "3"},
}


@pytest.fixture(scope="session")
def engine() -> None:
    """A Docker engine that answers; scripts/engine.sh starts one where it can."""
    if why := os.environ.get("BERTH_ENGINE_MISSING"):
        pytest.skip(why)
    try:
        client = docker.from_env(timeout=10)
        client.ping()
        client.close()
    except DockerException as error:
        pytest.skip(f"no Docker engine answers ({error}); run scripts/engine.sh COMMAND as root")


@pytest.fixture(scope="session")
def images(engine: None) -> str:
    """All images, built; their tag."""
    done = subprocess.run(
        ["sh", str(ROOT / "scripts" / "images"), "--tag", TAG],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BUILD_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return TAG


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seeds that only the user of the containers can read, and root if that is us."""
    folder = tmp_path_factory.mktemp("keys")
    make_keys(folder, owner_uid=CONTAINER_UID if os.geteuid() == 0 else None)
    return folder


@pytest.fixture(scope="module")
def stack(images: str, keys: Path) -> Iterator[Stack]:
    """deploy/compose.yaml, up."""
    variables = {"BERTH_TAG": images, "BERTH_KEYS": str(keys)}
    if os.geteuid() != 0:  # the seeds are ours, so the services run as us
        variables |= {"BERTH_UID": str(os.getuid()), "BERTH_GID": str(os.getgid())}
    with Stack(ROOT / "deploy" / "compose.yaml", variables, IN_A_HURRY) as stack:
        yield stack
