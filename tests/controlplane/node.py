"""A real kubelet, containerd and runc, as root on this machine: a node of an API server or of none.

Static pods run as processes with real control groups, and a device plugin of the test's own gives
them devices, so that the kubelet's PodResources API answers as on a node with GPUs. The device
plugin is a gRPC server of three methods, spoken over h2.

Everything is in one folder but what has a fixed path: the folder of device plugins, which is the
kubelet's. What starts here ends with it: the kubelet first, then what runs, then containerd.
"""

import fcntl
import io
import json
import os
import socket
import ssl
import subprocess
import tarfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RequestReceived, StreamEnded

from berthmaster.lab.controlplane.build import cannot_run_a_kubelet, find_kubelet
from berthmaster.lab.controlplane.compiling import Unavailable
from berthmaster.lib.runtime.process_setup import end_with_parent
from berthmaster.lib.runtime.protobuf import field
from tests.support.patience import hang_s, wait_until

PLUGINS: Final = Path("/var/lib/kubelet/device-plugins")
PAUSE: Final = "berthmaster.test/pause:1"
# Waits for ever, or, called `train`, says ten times a second how far it is, until told to go.
_SOURCE: Final = r"""
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
static volatile sig_atomic_t leaving;
static void on_term(int number) { (void)number; leaving = 1; }
int main(int count, char **words) {
    if (count < 2 || strcmp(words[1], "train") != 0) for (;;) pause();
    signal(SIGTERM, on_term);
    setvbuf(stdout, NULL, _IOLBF, 4096);
    for (int step = 1; !leaving; step++) {
        printf("step %d\n", step);
        if (step % 10 == 0) printf("BERTH {\"step\": %d, \"loss\": 0.5}\n", step);
        usleep(100000);
    }
    puts("saved");
    return 0;
}
"""
OTHERS_S: Final = 500.0  # for tests of other files that have a node
_UNCHECKED: Final = ssl._create_unverified_context()


def _listens(path: Path) -> bool:
    """Whether anybody is behind a socket: one that was killed leaves its file."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def why_not() -> str:
    """What this machine lacks for it; "" = nothing."""
    if lacking := cannot_run_a_kubelet():
        return lacking
    if _listens(PLUGINS / "kubelet.sock"):
        return f"{PLUGINS} is in use: a kubelet runs here"
    try:
        find_kubelet()
    except Unavailable as reason:
        return str(reason)
    return ""


class Node:
    """One node; pods are files."""

    def __init__(self, folder: Path, name: str, kubeconfig: Path | None = None) -> None:
        self.port = _free_port()  # of the kubelet's own API
        self.pod_resources = folder / "kubelet" / "pod-resources" / "kubelet.sock"
        self.name = name
        self.folder = folder
        self.kubeconfig = kubeconfig
        self._socket = folder / "containerd.sock"
        self._kubelet: subprocess.Popen[bytes] | None = None

    def start_kubelet(self) -> None:
        """Run the kubelet; it listens when this returns."""
        self.pod_resources.unlink(missing_ok=True)
        self._kubelet = _started(self.folder, "kubelet", _kubelet(self))
        wait_until(self.pod_resources.exists, "the kubelet listens")

    def kill_kubelet(self) -> None:
        """End the kubelet by SIGKILL; pods go on."""
        assert self._kubelet is not None
        self._kubelet.kill()
        self._kubelet.wait(hang_s())

    def end_kubelet(self) -> None:
        """End the kubelet if it runs."""
        if self._kubelet is not None:
            _ended(self._kubelet)

    def pods(self) -> dict[str, Any]:
        """The pods that the kubelet knows, by name without the node's."""
        with urlopen(
            f"https://127.0.0.1:{self.port}/pods", timeout=hang_s(), context=_UNCHECKED
        ) as answer:
            items = json.load(answer)["items"] or []  # null when there is none
        return {pod["metadata"]["name"].removesuffix(f"-{self.name}"): pod for pod in items}

    def ctr(self, *arguments: str, data: bytes | None = None) -> str:
        """What containerd's own client says."""
        done = subprocess.run(
            ["ctr", "--address", str(self._socket), "-n", "k8s.io", *arguments],
            input=data,
            capture_output=True,
            timeout=hang_s(),
            check=True,
        )
        return done.stdout.decode()

    def run_pod(
        self,
        name: str,
        resource: str = "",
        count: int = 0,
        *,
        namespace: str = "ml",
        args: Sequence[str] = (),
    ) -> None:
        """Start a pod of one process that has so many devices. Its name there ends with the
        node's."""
        amounts = {"cpu": "10m", "memory": "16Mi"} | ({resource: str(count)} if count else {})
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {
                "hostNetwork": True,
                "terminationGracePeriodSeconds": 1,
                "containers": [
                    {
                        "name": "main",
                        "image": PAUSE,
                        "imagePullPolicy": "Never",
                        "args": list(args),
                        "resources": {"limits": amounts, "requests": amounts},
                    }
                ],
            },
        }
        (self.folder / "pods" / f"{name}.json").write_text(json.dumps(pod))

    def stop_pod(self, name: str) -> None:
        """It goes with its file."""
        (self.folder / "pods" / f"{name}.json").unlink()

    def pids(self) -> list[int]:
        """Of all that runs in pods, what keeps their sandboxes included."""
        rows = [line.split() for line in self.ctr("tasks", "ls").splitlines()[1:]]
        return [int(row[1]) for row in rows if row[2] == "RUNNING"]


@contextmanager
def running(folder: Path, name: str, kubeconfig: Path | None = None) -> Iterator[Node]:
    """The node, up. ``kubeconfig``: of the API server that it registers with; None = no one."""
    node = Node(folder, name, kubeconfig)
    with ExitStack() as owned:
        owned.enter_context(_alone())
        for each in ("kubelet", "pods"):
            (folder / each).mkdir()
        owned.callback(
            _unmount, folder
        )  # last of all: a mount that stays keeps its folder for ever
        _containerd(owned, folder)
        wait_until((folder / "containerd.sock").exists, "containerd listens")
        wait_until(lambda: _answers(node), "containerd answers")
        node.ctr("images", "import", "-", data=_image(folder))
        owned.callback(_end_all, node)
        owned.callback(node.end_kubelet)
        node.start_kubelet()
        yield node


@contextmanager
def _alone() -> Iterator[None]:
    """Have the folder of device plugins, which a machine has once, for oneself.

    Tests of other processes may have a node for minutes."""
    PLUGINS.parent.mkdir(parents=True, exist_ok=True)
    with (PLUGINS.parent / "berth-tests.lock").open("w") as lock:

        def is_ours() -> bool:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

        wait_until(is_ours, "no other test has a node", hang_s=OTHERS_S)
        yield


def _unmount(folder: Path) -> None:
    """What kubelet and containerd have mounted, the innermost first."""
    places = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for place in sorted((p for p in places if p.startswith(f"{folder}/")), reverse=True):
        subprocess.run(["umount", "-l", place], check=False, timeout=hang_s())


def _answers(node: Node) -> bool:
    try:
        node.ctr("version")
    except subprocess.SubprocessError:
        return False
    return True


def _end_all(node: Node) -> None:
    for line in node.ctr("tasks", "ls").splitlines()[1:]:
        subprocess.run(["kill", "-9", line.split()[1]], check=False, timeout=hang_s())
    wait_until(lambda: not node.pids(), "nothing runs any more")


def _started(folder: Path, name: str, argv: Sequence[str]) -> subprocess.Popen[bytes]:
    with (folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen(
            argv,
            stdout=log,
            stderr=log,
            preexec_fn=end_with_parent(),  # noqa: PLW1509 # takes no lock
        )


def _ended(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(hang_s())
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(hang_s())


def _containerd(owned: ExitStack, folder: Path) -> None:
    config = folder / "containerd.toml"
    config.write_text(
        f"""version = 2
root = "{folder}/root"
state = "{folder}/state"
[grpc]
  address = "{folder}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
"""
    )
    owned.callback(_ended, _started(folder, "containerd", ["containerd", "-c", str(config)]))


def _kubelet(node: Node) -> list[str]:
    """Write the kubelet's settings; its command line."""
    folder = node.folder
    config = folder / "kubelet.json"
    settings = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "staticPodPath": str(folder / "pods"),
        "fileCheckFrequency": "1s",
        "syncFrequency": "5s",
        "containerRuntimeEndpoint": f"unix://{folder}/containerd.sock",
        "cgroupDriver": "cgroupfs",
        "failCgroupV1": False,
        "enforceNodeAllocatable": [],
        "failSwapOn": False,
        "evictionHard": {},
        "localStorageCapacityIsolation": False,
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "address": "127.0.0.1",
        "port": node.port,
        "healthzPort": 0,
        "readOnlyPort": 0,
    }
    config.write_text(json.dumps(settings))
    return [
        str(find_kubelet()),
        *("--config", str(config), "--root-dir", str(folder / "kubelet")),
        *("--cert-dir", str(folder / "certificates"), "--hostname-override", node.name),
        *(("--kubeconfig", str(node.kubeconfig)) if node.kubeconfig is not None else ()),
    ]


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def _image(folder: Path) -> bytes:
    """An image of one program, as `docker save` would write it."""
    source, program = folder / "pause.c", folder / "pause"
    source.write_text(_SOURCE)
    subprocess.run(
        ["gcc", "-static", "-Os", "-o", str(program), str(source)], check=True, timeout=hang_s()
    )
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        tar.add(program, "pause")
    config = json.dumps(
        {
            "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine],
            "os": "linux",
            "config": {"Entrypoint": ["/pause"]},
            "rootfs": {
                "type": "layers",
                "diff_ids": [f"sha256:{sha256(layer.getvalue()).hexdigest()}"],
            },
        }
    ).encode()
    manifest = [{"Config": "config.json", "RepoTags": [PAUSE], "Layers": ["layer.tar"]}]
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        for name, data in (
            ("config.json", config),
            ("layer.tar", layer.getvalue()),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return whole.getvalue()


# The device plugin


@contextmanager
def device_plugin(resource: str, devices: Sequence[str]) -> Iterator[None]:
    """Offers these devices under this resource, to the kubelet that runs here."""
    path = PLUGINS / f"{resource.replace('/', '-')}.sock"
    # It empties the folder at its start: a plugin that comes before is never found again.
    wait_until(lambda: _listens(PLUGINS / "kubelet.sock"), "the kubelet takes device plugins")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(path))
        listening.listen()
        offered = b"".join(field(1, field(1, one) + field(2, "Healthy")) for one in devices)
        thread = threading.Thread(target=_serve, args=(listening, offered), daemon=True)
        thread.start()
        register = field(1, "v1beta1") + field(2, path.name) + field(3, resource)
        _register(register)
        try:
            yield
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            path.unlink(missing_ok=True)
            thread.join(hang_s())


def _register(body: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as wire:
        wire.settimeout(10)
        wire.connect(str(PLUGINS / "kubelet.sock"))
        http = H2Connection(H2Configuration(client_side=True, header_encoding=None))
        http.initiate_connection()
        headers = [(":method", "POST"), (":scheme", "http"), (":authority", "localhost")]
        headers += [(":path", "/v1beta1.Registration/Register"), ("te", "trailers")]
        http.send_headers(1, [*headers, ("content-type", "application/grpc")])
        http.send_data(1, _framed(body), end_stream=True)
        wire.sendall(http.data_to_send())
        while True:
            for event in http.receive_data(wire.recv(65_536)):
                if isinstance(event, StreamEnded):
                    return


def _framed(body: bytes) -> bytes:
    return b"\0" + len(body).to_bytes(4, "big") + body


def _serve(listening: socket.socket, offered: bytes) -> None:
    while True:
        try:
            wire, _ = listening.accept()
        except OSError:
            return  # the plugin has ended
        threading.Thread(target=_answer, args=(wire, offered), daemon=True).start()


def _answer(wire: socket.socket, offered: bytes) -> None:
    """One connection of the kubelet: it asks for the options, what there is, and for devices."""
    http = H2Connection(H2Configuration(client_side=False, header_encoding=None))
    http.initiate_connection()
    paths: dict[int, bytes] = {}
    bodies: dict[int, bytes] = {}
    with wire:
        wire.sendall(http.data_to_send())
        while data := wire.recv(65_536):
            for event in http.receive_data(data):
                if isinstance(event, RequestReceived):
                    paths[event.stream_id] = dict(event.headers)[b":path"].rpartition(b"/")[2]
                elif isinstance(event, DataReceived):
                    bodies[event.stream_id] = bodies.get(event.stream_id, b"") + event.data
                elif isinstance(event, StreamEnded):
                    stream = event.stream_id
                    headers = [(":status", "200"), ("content-type", "application/grpc")]
                    http.send_headers(stream, headers)
                    if paths[stream] == b"ListAndWatch":  # it stays open: nothing changes
                        http.send_data(stream, _framed(offered))
                        continue
                    # As many empty answers as containers are asked for: no device is a real one.
                    asked = bodies.get(stream, b"")[5:].count(b"\x0a", 0, 1)
                    answer = field(1, b"") * asked if paths[stream] == b"Allocate" else b""
                    http.send_data(stream, _framed(answer))
                    http.send_headers(stream, [("grpc-status", "0")], end_stream=True)
            wire.sendall(http.data_to_send())
