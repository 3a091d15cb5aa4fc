"""A hub and workers, started together in seconds and stopped together.

They share one etcd with a prefix each, which saves memory and time. Authority, keys, ports, API
server and controllers are separate. Components that no test needs are left out, so a hub and three
workers fit into 4 GiB.

    with Planes(tmp_path, workers=2) as planes:
        planes.hub.api.items("/api/v1/namespaces")
        make_nodes(planes.workers[0], [gpu_node("a100-0", model="NVIDIA-A100-SXM4-80GB")])
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from berthmaster.lab.controlplane.api import Object, documents
from berthmaster.lab.controlplane.build import Programs, find
from berthmaster.lab.controlplane.plane import Etcd, Plane, Role
from berthmaster.lab.controlplane.processes import Failed

CRDS: Final = Path(__file__).resolve().parent / "crds"  # of projects other than Kueue
HUB: Final = "hub"
START_TRIES: Final = 3  # another process may take a free port before the program binds it
_PORT_TAKEN: Final = "address already in use"


def default_crds(programs: Programs) -> list[Object]:
    """Return every resource definition that Berthmaster's services use."""
    return [*map(compact, documents(CRDS)), *map(compact, documents(programs.kueue_definitions))]


def compact(definition: Object) -> Object:
    """Return a definition with its stored version alone, and without the texts of its fields.

    A webhook, which tests do not run, would convert the other versions. Most of an API server's
    work with a definition grows with its size.
    """
    spec = definition["spec"]
    versions = [_without_texts(version) for version in spec["versions"] if version["storage"]]
    return {**definition, "spec": {**spec, "versions": versions}}


def _without_texts(part: Any) -> Any:
    if isinstance(part, list):
        return [_without_texts(each) for each in part]
    if not isinstance(part, dict):
        return part
    return {
        name: _without_texts(value)
        for name, value in part.items()
        # a field named description has a schema here, and no text
        if name != "description" or not isinstance(value, str)
    }


class Planes:
    """A context manager for a hub (optional) and workers."""

    def __init__(
        self,
        folder: Path,
        *,
        hub: bool = True,
        workers: int | Sequence[str] = 3,
        crds: Sequence[Object] | None = None,
        programs: Programs | None = None,
    ) -> None:
        self._folder = folder
        names = (
            [f"worker-{n}" for n in range(1, workers + 1)] if isinstance(workers, int) else workers
        )
        self._roles: dict[str, Role] = {HUB: "hub"} if hub else {}
        self._roles |= dict.fromkeys(names, "worker")
        self.programs = programs or find()
        self.crds = default_crds(self.programs) if crds is None else list(crds)
        self._planes: dict[str, Plane] = {}
        self._etcd: Etcd | None = None

    # ---- members

    @property
    def hub(self) -> Plane:
        return self._planes[HUB]

    @property
    def workers(self) -> list[Plane]:
        """Return the workers, in the given order."""
        return [plane for plane in self._planes.values() if plane.role == "worker"]

    @property
    def etcd(self) -> Etcd:
        """Return the store of all planes."""
        assert self._etcd is not None, "not started"
        return self._etcd

    def __getitem__(self, name: str) -> Plane:
        return self._planes[name]

    def __iter__(self) -> Iterator[Plane]:
        return iter(self._planes.values())

    # ---- start and stop

    def start(self) -> None:
        """Start all planes and wait until every cluster accepts pods. Raises Failed."""
        for tries_left in reversed(range(START_TRIES)):
            try:
                self._try_start(START_TRIES - tries_left)
                return
            except Failed as error:
                self.stop()
                if _PORT_TAKEN not in str(error) or not tries_left:
                    raise
            except BaseException:
                self.stop()
                raise

    def _try_start(self, number: int) -> None:
        folder = self._folder / f"start-{number}"
        self._etcd = Etcd(folder / "etcd", self.programs)
        self._etcd.start()
        self._planes = {
            name: Plane(name, role, folder / name, self.programs, self._etcd)
            for name, role in self._roles.items()
        }
        for plane in self._planes.values():
            plane.launch_api_server()
        self._each(self._finish)

    def _finish(self, plane: Plane) -> None:
        plane.wait_ready()
        # before the controller manager, so that its garbage collector knows the kinds
        plane.apply(self.crds)
        plane.start_followers()

    def _each(self, work: Callable[[Plane], None]) -> None:
        with ThreadPoolExecutor(len(self._planes) or 1) as threads:
            list(threads.map(work, self._planes.values()))

    def mend(self) -> None:
        """Restart whatever a test has stopped."""
        self.etcd.process.resume()
        if not self.etcd.process.running:
            self.etcd.start()
        self._each(Plane.mend)

    def stop(self) -> None:
        """Stop all planes and etcd."""
        for plane in self._planes.values():
            plane.stop()
        if self._etcd is not None:
            self._etcd.process.kill()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
