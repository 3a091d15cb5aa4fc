"""A source whose samples include the kubelet's holders of each GPU."""

from collections.abc import Sequence

from berthmaster.lib.messages.telemetry import TelemetrySource
from berthmaster.worker.telemetry.core.source import NodeReading, Source
from berthmaster.worker.telemetry.kubelet import KubeletWatch


class Held:
    """The readings of another source, of one node."""

    def __init__(self, source: Source, kubelet: KubeletWatch) -> None:
        self._source = source
        self._kubelet = kubelet
        kubelet.start()

    @property
    def kind(self) -> TelemetrySource:
        """The other's."""
        return self._source.kind

    def read(self, now_s: float) -> Sequence[NodeReading]:
        """Raises SourceFailed as the other does; a kubelet that does not answer is only told."""
        holders = self._kubelet.holders()
        if holders is None:
            lack = (self._kubelet.lacks,)
            return [node._replace(lacks=(*node.lacks, *lack)) for node in self._source.read(now_s)]
        return [
            node._replace(gpus=tuple(holders.told(gpu) for gpu in node.gpus))
            for node in self._source.read(now_s)
        ]

    def close(self) -> None:
        """Both."""
        self._kubelet.close()
        self._source.close()
