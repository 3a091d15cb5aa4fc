"""Usage metrics of jobs: pods and telemetry in, messages and annotations out. A reconciler; pure.

``act`` returns what is due. Owners are read only for pods with GPUs. A job that idles on all GPUs
for long gets one event at the begin and one at the end.
"""

from collections.abc import Iterable
from typing import Final

from berthmaster.lib.kube.controller.aside import SetAside
from berthmaster.lib.kube.controller.shell_contract import Answer, KubeEvent, Outcome
from berthmaster.lib.kube.objects import Metadata
from berthmaster.lib.messages.telemetry import JobFigures, NodeTelemetry
from berthmaster.worker.job_metrics.core.instructions import Annotate, FindOwner, Write
from berthmaster.worker.job_metrics.core.meter import Meter
from berthmaster.worker.job_metrics.core.notes import RESOURCES, Notes
from berthmaster.worker.job_metrics.core.objects import JobObject, PodObject, controller_of, pod_of
from berthmaster.worker.job_metrics.core.owners import Owners

ROUND_S: Final = 1.0
IDLE_REASON: Final = "GpusIdle"
BUSY_REASON: Final = "GpusBusy"


class Figures:
    def __init__(self, meter: Meter, namespaces: tuple[str, ...], annotate_s: float) -> None:
        self.aside = SetAside()
        self.meter = meter
        self.latest: dict[tuple[str, str, str], JobFigures] = {}  # namespace, kind, name
        self._notes = Notes(namespaces, annotate_s)
        self._owners = Owners()
        self._pods: dict[str, PodObject] = {}
        self._above: dict[str, set[str]] = {}  # uid of a requested owner -> pods
        self._marked: dict[str, tuple[str, JobObject]] = {}  # uid -> kind, Job
        self._idle: set[str] = set()  # uids of jobs reported idle
        self._asks: list[FindOwner] = []
        self._told: list[JobFigures] = []
        self._next_s = 0.0

    # Input

    def on_pod(self, pod: PodObject, *, gone: bool) -> None:
        """Apply a bound pod, or its end."""
        uid = pod.metadata.uid
        if gone:
            self._pods.pop(uid, None)
            self.meter.book.drop(uid)
            return
        self._pods[uid] = pod
        self._take(pod)

    def on_job(self, kind: str, job: JobObject, *, gone: bool) -> None:
        """Apply a job with annotations."""
        uid = job.metadata.uid
        if gone:
            self._marked.pop(uid, None)
            self._notes.gone(uid)
        else:
            self._marked[uid] = (kind, job)
            if job.over:
                self._next_s = 0.0

    def on_node(self, told: NodeTelemetry, now_s: float) -> None:
        """Apply telemetry. Unknown owners of its pods are requested."""
        for uid in self.meter.on_node(told, now_s):
            if (pod := self._pods.get(uid)) is None:
                continue
            _, unknown = self._owners.chain(controller_of(pod.metadata))
            if unknown is not None:
                self._above.setdefault(unknown.uid, set()).add(uid)
                self._asks += self._owners.ask(pod.metadata.namespace, unknown)

    def _take(self, pod: PodObject) -> None:
        above, _ = self._owners.chain(controller_of(pod.metadata))
        self.meter.book.put(pod_of(pod, above))

    # Output

    def begin(self) -> None: ...

    def wake_at_s(self) -> float:
        """Jobs are looked through once a second; owners are asked for at once."""
        return 0.0 if self._asks else self._next_s

    def act(self, now_s: float) -> Iterable[Write | KubeEvent]:
        """Return the writes and events that are due."""
        asks, self._asks = self._asks, []
        out: list[Write | KubeEvent] = [*asks]
        if now_s < self._next_s:
            return out
        self._next_s = now_s + ROUND_S
        for figures in self.meter.take(now_s):
            key = (figures.namespace, figures.kind, figures.name)
            if figures.ended:
                self.latest.pop(key, None)
            else:
                self.latest[key] = figures
            self._told.append(figures)
            out += self._notes.write(figures, now_s)
            out += self._idleness(figures)
        for uid, (kind, job) in list(self._marked.items()):
            if job.over:
                del self._marked[uid]
                metadata = job.metadata
                out += self._notes.left_over(kind, metadata.namespace, metadata.name, uid)
        return out

    def take_told(self) -> list[JobFigures]:
        """Return the messages to send now; late ones are worthless."""
        told, self._told = self._told, []
        return told

    def _idleness(self, figures: JobFigures) -> list[KubeEvent]:
        """Return events about changed idleness, where allowed."""
        if not figures.idle_for_long:
            was = figures.uid in self._idle
            self._idle.discard(figures.uid)
            if not was or figures.ended or figures.idle_since_s is not None:
                return []
            return self._tell(figures, BUSY_REASON, "its GPUs are busy again", warning=False)
        if figures.uid in self._idle:
            return []
        self._idle.add(figures.uid)
        minutes = (figures.observed_at_s - (figures.idle_since_s or 0.0)) / 60
        note = f"its {figures.use.gpus} GPUs have done nothing for {minutes:.0f} min"
        return self._tell(figures, IDLE_REASON, note, warning=True)

    def _tell(
        self, figures: JobFigures, reason: str, note: str, *, warning: bool
    ) -> list[KubeEvent]:
        if not self._notes.serves(figures):
            return []
        about = Metadata(name=figures.name, namespace=figures.namespace, uid=figures.uid)
        return [KubeEvent(RESOURCES[figures.kind], about, warning, reason, note)]

    def on_answer(self, write: Write, answer: Answer, now_s: float) -> Iterable[Write | KubeEvent]:
        """Apply the result of a write or read."""
        if isinstance(write, Annotate):
            if answer.outcome is Outcome.GONE:
                self._notes.gone(write.uid)
            elif not answer.done:
                self._notes.failed(write, now_s)
            return ()
        uid = write.reference.uid
        if answer.outcome in (Outcome.LATER, Outcome.CONFLICT):
            self._owners.unanswered(uid)
            return ()
        found = answer.found
        above = controller_of(found) if isinstance(found, Metadata) else None
        self._owners.learn(uid, above)
        for pod in self._above.pop(uid, set()):
            if (known := self._pods.get(pod)) is not None:
                self._take(known)
        return ()

    @property
    def idle(self) -> int:
        return sum(one.idle_for_long for one in self.latest.values())
