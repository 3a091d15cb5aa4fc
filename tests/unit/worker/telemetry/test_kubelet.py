"""Asking a kubelet over its socket, played by a server that speaks HTTP/2 as gRPC does."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived, StreamEnded
from hypothesis import given
from hypothesis import strategies as st

from berthmaster.lib.messages.telemetry import GpuHolder, GpuReading, MigInstance
from berthmaster.lib.runtime.protobuf import BadMessage, field, fields
from berthmaster.worker.telemetry.core.pod_resources import MAX_HOLDERS, Given, Holders
from berthmaster.worker.telemetry.core.pod_resources import given as given_in
from berthmaster.worker.telemetry.kubelet import LIST, OLD_S, KubeletFault, KubeletWatch, call

GPU = "GPU-8f6e6c9a-3f7a-4f6e-9f0e-0123456789ab"
OTHER = "GPU-11111111-3f7a-4f6e-9f0e-0123456789ab"
MIG = "MIG-22222222-3f7a-4f6e-9f0e-0123456789ab"


# What a kubelet writes


def devices(resource: str, *ids: str) -> bytes:
    numa = field(3, field(1, field(1, 0)))
    return field(2, field(1, resource) + b"".join(field(2, one) for one in ids) + numa)


def claim(name: str, driver: str, device: str, *cdi: str, share: str = "") -> bytes:
    names = b"".join(field(1, field(1, one)) for one in cdi)
    shared = field(5, share) if share else b""
    one = names + field(2, driver) + field(3, "pool") + field(4, device) + shared
    return field(5, field(2, name) + field(3, "ml") + field(4, one))


def pod(namespace: str, name: str, *containers: tuple[str, bytes]) -> bytes:
    body = field(1, name) + field(2, namespace)
    for called, has in containers:
        body += field(3, field(1, called) + has + field(3, 7))  # and a processor
    return field(1, body)


ANSWER = b"".join(
    (
        pod("ml", "train-0", ("main", devices("nvidia.com/gpu", GPU))),
        pod("ml", "shares", ("a", devices("nvidia.com/gpu.shared", f"{OTHER}::0", f"{OTHER}::3"))),
        pod("ml", "hami", ("main", devices("nvidia.com/gpu", f"{OTHER}-4"))),
        pod("ml", "slice", ("main", devices("nvidia.com/mig-1g.10gb", MIG))),
        pod("ml", "claims", ("main", claim("c1", "gpu.nvidia.com", "gpu-1"))),
        pod("ml", "cdi", ("main", claim("c2", "x", "d", f"k8s.x/claim=7-{MIG}", share="s1"))),
        pod("web", "nginx", ("main", devices("example.com/nic", "nic-0"))),
        pod("web", "odd", ("main", devices("nvidia.com/gpu", "GPU-not-one", f"{GPU}/x"))),
    )
)
HELD = [
    Given("ml", "train-0", "main", "nvidia.com/gpu", GPU),
    Given("ml", "shares", "a", "nvidia.com/gpu.shared", OTHER, replica=True),
    Given("ml", "shares", "a", "nvidia.com/gpu.shared", OTHER, replica=True),
    Given("ml", "hami", "main", "nvidia.com/gpu", OTHER, replica=True),
    Given("ml", "slice", "main", "nvidia.com/mig-1g.10gb", MIG),
    Given("ml", "claims", "main", "gpu.nvidia.com", "", 1, claim="c1"),
    Given("ml", "cdi", "main", "x", MIG, replica=True, claim="c2"),
]


def test_devices_replicas_slices_and_claims_are_read() -> None:
    assert given_in(ANSWER) == HELD


def test_a_reading_says_who_was_given_the_gpu_and_its_parts() -> None:
    holders = Holders(HELD)
    whole = GpuReading(index=0, uuid=GPU, model="H100")
    (one,) = holders.told(whole).holders
    assert one == GpuHolder(
        namespace="ml", pod="train-0", container="main", resource="nvidia.com/gpu"
    )
    shared = holders.told(GpuReading(index=7, uuid=OTHER, model="T4"))
    assert [(one.pod, one.parts) for one in shared.holders] == [("hami", 1), ("shares", 2)]
    cut = GpuReading(
        index=1,
        uuid="GPU-else",
        model="A100",
        mig=(MigInstance(uuid=MIG, profile="1g.10gb", memory_mib=9_856),),
    )
    assert [(one.pod, one.device, one.claim) for one in holders.told(cut).holders] == [
        ("cdi", MIG, "c2"),
        ("claims", "", "c1"),
        ("slice", MIG, ""),
    ]
    free = GpuReading(index=9, uuid="GPU-free", model="T4")
    assert holders.told(free) is free
    crowd = Holders(Given("ml", f"p{n}", "c", "r", GPU, replica=True) for n in range(500))
    assert len(crowd.told(whole).holders) == MAX_HOLDERS


@given(st.binary(max_size=64))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        given_in(data)
    except BadMessage:
        pass


@pytest.mark.parametrize(
    "data", [b"\x0a\x05ab", b"\x0b", b"\x08" + b"\xff" * 11, b"\x02\x00"], ids=repr
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(BadMessage):
        list(fields(data))


# The call


Answering = Callable[[socket.socket, H2Connection], None]


def answer_with(body: bytes, status: str = "0", *, framed: bool = True) -> Answering:
    def answer(wire: socket.socket, http: H2Connection) -> None:
        http.send_headers(1, [(":status", "200"), ("content-type", "application/grpc")])
        data = b"\0" + len(body).to_bytes(4, "big") + body if framed else body
        while data:
            size = min(http.local_flow_control_window(1), http.max_outbound_frame_size, len(data))
            if size == 0:  # wait until the caller has made room
                http.receive_data(wire.recv(65_536))
                continue
            http.send_data(1, data[:size])
            data = data[size:]
            wire.sendall(http.data_to_send())
        trailers = [("grpc-status", status), ("grpc-message", "because")]
        http.send_headers(1, trailers, end_stream=True)
        wire.sendall(http.data_to_send())

    return answer


def hang(wire: socket.socket, http: H2Connection) -> None:
    while wire.recv(65_536):
        pass  # until the caller has had enough


def hang_up(wire: socket.socket, http: H2Connection) -> None:
    wire.close()


def reset(wire: socket.socket, http: H2Connection) -> None:
    http.reset_stream(1, 11)
    wire.sendall(http.data_to_send())
    hang(wire, http)


def refuse(wire: socket.socket, http: H2Connection) -> None:
    http.send_headers(1, [(":status", "503")], end_stream=True)
    wire.sendall(http.data_to_send())
    hang(wire, http)


def talk_nonsense(wire: socket.socket, http: H2Connection) -> None:
    wire.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10)
    hang(wire, http)


@contextmanager
def kubelet(path: Path, *answers: Answering) -> Iterator[list[str]]:
    """Answers one call after the other; what was called."""
    called: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(path))
        listening.listen()
        listening.settimeout(10)

        def serve() -> None:
            for answer in answers:
                wire, _ = listening.accept()
                wire.settimeout(10)
                with wire:
                    try:
                        called.append(_asked(wire, answer))
                    except OSError:
                        pass  # the caller has had enough

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield called
        thread.join(10)
        assert not thread.is_alive()


def _asked(wire: socket.socket, answer: Answering) -> str:
    http = H2Connection(H2Configuration(client_side=False, header_encoding=None))
    http.initiate_connection()
    wire.sendall(http.data_to_send())
    path = ""
    while True:
        for event in http.receive_data(wire.recv(65_536)):
            if isinstance(event, RequestReceived):
                path = dict(event.headers)[b":path"].decode()
            if isinstance(event, StreamEnded):
                answer(wire, http)
                return path


def test_a_kubelets_answer_of_any_size_is_read(tmp_path: Path) -> None:
    socket_path = tmp_path / "kubelet.sock"
    long = ANSWER * 1000  # more than HTTP/2's first window
    with kubelet(socket_path, answer_with(ANSWER), answer_with(long)) as called:
        assert call(socket_path, LIST) == ANSWER
        assert call(socket_path, LIST) == long
    assert called == ["/v1.PodResourcesLister/List"] * 2


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (hang, "no answer within 0.2 s"),
        (hang_up, "hung up|reset"),
        (reset, "ended the call: ENHANCE_YOUR_CALM"),
        (refuse, "answers HTTP 503"),
        (talk_nonsense, "kubelet.sock: "),
        (answer_with(b"", "12"), "gRPC status 12 because"),
        (answer_with(b"abc", framed=False), "not one whole message"),
    ],
)
def test_wrong_kubelet_answer_is_reported(tmp_path: Path, answer: Answering, why: str) -> None:
    socket_path = tmp_path / "kubelet.sock"
    with kubelet(socket_path, answer), pytest.raises(KubeletFault, match=why):
        call(socket_path, LIST, limit_s=0.2)


def test_a_kubelet_that_is_not_there_is_no_answer(tmp_path: Path) -> None:
    with pytest.raises(KubeletFault, match="there is no such socket"):
        call(tmp_path / "kubelet.sock", LIST)


def test_the_last_answer_counts_until_it_is_too_old(tmp_path: Path) -> None:
    socket_path = tmp_path / "kubelet.sock"
    now_s = [0.0]
    watch = KubeletWatch(socket_path, every_s=1e6, clock=lambda: now_s[0])
    assert watch.holders() is None
    with kubelet(socket_path, answer_with(ANSWER), hang_up, answer_with(b"\x0a\x05")):
        watch.start()
        assert watch.lacks == ""
        watch.ask()  # it hangs up: what it said before is still known
        watch.ask()  # and then it says nonsense
        assert watch.holders() is not None
        now_s[0] = OLD_S + 1
        assert watch.holders() is None
        assert watch.lacks == "who has which GPU: field 1 ends behind the message"
    watch.close()
