"""A hub and workers, started together in seconds and gone together.

They share one etcd, each under a prefix of its own, which saves memory and time; everything else is
their own: authority, keys, ports, API server, controllers. What no test asked for stays out, so a
hub and three workers fit into 4 GiB.

    with Planes(tmp_path, workers=2) as planes:
        planes.hub.api.items("/api/v1/namespaces")
        make_nodes(planes.workers[0], [gpu_node("a100-0", model="NVIDIA-A100-SXM4-80GB")])
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from berthmaster.lab.controlplane.api import Object, documents
from berthmaster.lab.controlplane.build import Programs, find
from berthmaster.lab.controlplane.plane import Etcd, Plane, Role
from berthmaster.lab.controlplane.processes import Failed

CRDS: Final = Path(__file__).resolve().parent / "crds"  # of other projects than Kueue
HUB: Final = "hub"
START_TRIES: Final = 3  # a free port may be somebody else's before its program has it
_PORT_TAKEN: Final = "address already in use"


def default_crds(programs: Programs) -> list[Object]:
    """Every definition that our services meet."""
    return [*documents(CRDS), *map(stored, documents(programs.kueue_definitions))]


def stored(definition: Object) -> Object:
    """Return a definition with the version that is stored alone.

    A webhook that tests do not run would convert the others, and without them an API server needs
    1.5 s of computing less at every start.
    """
    spec = definition["spec"]
    versions = [version for version in spec["versions"] if version["storage"]]
    return {**definition, "spec": {**spec, "versions": versions}}


class Planes:
    """A hub (unless told not to) and some workers. A context manager."""

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

    # ---- who is there

    @property
    def hub(self) -> Plane:
        """The hub."""
        return self._planes[HUB]

    @property
    def workers(self) -> list[Plane]:
        """The workers, in the order of their names given."""
        return [plane for plane in self._planes.values() if plane.role == "worker"]

    @property
    def etcd(self) -> Etcd:
        """The store of all of them."""
        assert self._etcd is not None, "not started"
        return self._etcd

    def __getitem__(self, name: str) -> Plane:
        return self._planes[name]

    def __iter__(self) -> Iterator[Plane]:
        return iter(self._planes.values())

    # ---- life

    def start(self) -> None:
        """Start all of it and wait until every cluster takes pods. Raises Failed."""
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
        plane.apply(self.crds)  # before the controller manager, whose garbage collector then knows
        plane.start_followers()

    def _each(self, work: Callable[[Plane], None]) -> None:
        with ThreadPoolExecutor(len(self._planes) or 1) as threads:
            list(threads.map(work, self._planes.values()))

    def mend(self) -> None:
        """Whatever a test has done, all of it runs again."""
        self.etcd.process.resume()
        if not self.etcd.process.running:
            self.etcd.start()
        self._each(Plane.mend)

    def stop(self) -> None:
        """End all of it; nothing is left running."""
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
