"""Real servers: one that is the test's own, and three that many tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from berthmaster.lib.supervisor.embedded import Server, ServerCluster, ServerConfig


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """One server, empty, synced by the system's leisure: nobody pulls the plug here."""
    with Server(tmp_path / "nats", ServerConfig(sync="default")) as running:
        yield running


@pytest.fixture(scope="session")
def _three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerCluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with ServerCluster(folder, config=ServerConfig(sync="default")) as running:
        yield running


@pytest.fixture
def cluster(_three: ServerCluster) -> Iterator[ServerCluster]:
    """Three servers with whatever earlier tests left: use names of your own. All run at first."""
    for one in _three.servers:
        if not one.running:
            one.start()
    for one in _three.servers:
        one.resume()
        one.wait_healthy(20)
    yield _three
    for one in _three.servers:
        one.resume()
