"""A hub and three workers that run for the whole tier, and for each test a namespace of its own.

A tier's conftest.py imports these. Where processes share a tier (scripts/run_tests.py), each has
planes of its own.
"""

import secrets
from collections.abc import Iterator

import pytest

from berthmaster.lab.controlplane.build import Programs, find
from berthmaster.lab.controlplane.compiling import Unavailable
from berthmaster.lab.controlplane.nodes import remove_nodes
from berthmaster.lab.controlplane.planes import Planes


@pytest.fixture(scope="session")
def programs() -> Programs:
    """The control plane's programs; a tier without them is skipped with the reason."""
    try:
        return find()
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def _running(tmp_path_factory: pytest.TempPathFactory, programs: Programs) -> Iterator[Planes]:
    folder = tmp_path_factory.mktemp("planes")
    with Planes(folder, workers=3, programs=programs) as running:
        yield running


@pytest.fixture
def planes(_running: Planes) -> Iterator[Planes]:
    """The planes, all of it running and without nodes. What a test breaks is mended after it."""
    yield _running
    _running.mend()
    for worker in _running.workers:
        remove_nodes(
            worker, [node["metadata"]["name"] for node in worker.api.items("/api/v1/nodes")]
        )


@pytest.fixture
def namespace(planes: Planes) -> Iterator[str]:
    """A namespace of one name in every plane. It goes after the test, its pods at once.

    Where nothing was made in it it stays: to look through all that there could be in a namespace
    that goes costs its plane a third of a second, and most tests use one plane."""
    name = f"test-{secrets.token_hex(4)}"
    for plane in planes:
        plane.make_namespace(name)
    marks = {plane.name: plane.audit.mark() for plane in planes}
    yield name
    planes.mend()
    for plane in planes:
        is_touched = plane.audit.touched(name, since=marks[plane.name])
        if is_touched and plane.api.find(f"/api/v1/namespaces/{name}") is not None:
            plane.api.delete(f"/api/v1/namespaces/{name}")
            plane.api.delete(f"/api/v1/namespaces/{name}/pods", gracePeriodSeconds=0)
