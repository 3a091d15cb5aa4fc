"""Facts about Kueue that differ by version. Pure.

Example: ``WORKER_CLIENTS.known((0, 19, 2))`` is False, since the gate came with 0.19.4.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

Version = tuple[int, ...]  # such as (0, 19, 2)
OLDEST: Final[Version] = (0, 16)  # v1beta2 is stored since then
TESTED: Final = "v0.19.2"
SEEN: Final[tuple[Version, Version]] = ((0, 18), (0, 19))  # first and last with all facts tested
CHECKS_FIRST: Final[Version] = (
    0,
    16,
    6,
)  # since then nothing is copied before all checks are Ready


class Gate(NamedTuple):
    """A feature gate that later patch releases of several minor versions brought."""

    name: str
    patches: Mapping[Version, Version]  # minor version -> its first patch release with the gate
    always: Version  # first minor version that always has the gate
    on_from: Version | None = None  # first minor version with the gate on by default; None = none

    def known(self, version: Version) -> bool:
        """Return whether a version knows the gate. An unknown gate stops Kueue's manager."""
        return version >= self.patches.get(version[:2], self.always)

    def on(self, version: Version, gates: Mapping[str, bool]) -> bool:
        """Return whether the gate is in effect."""
        default = self.on_from is not None and version >= self.on_from
        return self.known(version) and gates.get(self.name, default)

    @property
    def since(self) -> str:
        """Return the versions as text: "0.18.8, 0.19.4 and 0.20"."""
        found = [".".join(map(str, each)) for each in (*self.patches.values(), self.always)]
        return f"{', '.join(found[:-1])} and {found[-1]}"


# Clears the time after which a worker deletes an ended Job; for Jobs only.
ENDED_JOBS: Final = Gate(
    "MultiKueueBatchJobClearingTTLSecondsAfterFinishedOnWorkerCluster",
    {(0, 18): (0, 18, 7), (0, 19): (0, 19, 3)},
    (0, 20),
)
# Clients of workers use clientConnection of the configuration; otherwise 5 calls a second.
WORKER_CLIENTS: Final = Gate(
    "MultiKueueReuseClientConnectionConfigForWorkers",
    {(0, 18): (0, 18, 8), (0, 19): (0, 19, 4)},
    (0, 20),
    on_from=(0, 20),
)
