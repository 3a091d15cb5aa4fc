"""What `berth up` runs for which options, and where commands find it."""

import os
import stat
from pathlib import Path

import pytest

from berthmaster.lib.supervisor.folder import AlreadyRunning, FolderLock
from berthmaster.lib.supervisor.plan import (
    Entry,
    KubeTarget,
    PlanError,
    Planned,
    UpOptions,
    defaults,
    entries,
    figures_from,
    kube_target,
    planned,
    with_fleet,
)
from berthmaster.lib.supervisor.processes import describe_exit

HERE = Path("/data")
PIPELINE = ("gateway", "resolver", "scorer", "archivist", "usage", "door", "accounts")


def test_each_process_has_its_user_its_port_and_its_part_of_the_fleet() -> None:
    options = UpOptions(
        folder=HERE,
        services=("resolver", "emulator"),
        replicas={"resolver": 2, "emulator": 2},
        clusters=3,
        nodes=9,
        speed=60,
    )
    made = planned(
        with_fleet(entries(options), options),
        python="py",
        url="nats://h:1",
        creds_files={"resolver": HERE / "r.creds", "emulator": HERE / "e.creds"},
        http_ports=[11, 12, 13, 14],
    )

    def start(service: str, port: int, seed: str) -> tuple[str, ...]:
        return (
            *("py", "-m", "berthmaster.cli.main", "serve", service, "--nats-url", "nats://h:1"),
            *("--http-port", str(port), "--log-level", "info"),
            *("--nats-creds-file", f"/data/{seed}.creds", "--inbox-prefix", f"_INBOX.{service}"),
        )

    fleet = (
        *("--fleet", "builtin", "--clusters", "3", "--nodes", "9", "--speed", "60"),
        *("--seed", "1", "--data-dir", "/data/emulator"),
    )
    assert made == [
        Planned(name="resolver-1", service="resolver", argv=start("resolver", 11, "r")),
        Planned(name="resolver-2", service="resolver", argv=start("resolver", 12, "r")),
        Planned(
            name="emulator-1",
            service="emulator",
            argv=(*start("emulator", 13, "e"), *fleet, "--part", "1/2"),
        ),
        Planned(
            name="emulator-2",
            service="emulator",
            argv=(*start("emulator", 14, "e"), *fleet, "--part", "2/2"),
        ),
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"services": ("skorer",)}, "no service 'skorer'; there are gateway, resolver, scorer"),
        ({"replicas": {"emulator": 9}}, "9 emulators for 8 clusters: one each is most"),
        ({"replicas": {"resolver": 0}}, "0 of resolver: from 1 to 16 can be run here"),
        ({"servers": 2}, "2 NATS servers: right are 1, 3 or 5"),
        ({"servers": 3, "nats_port": 4222}, "one port cannot be that of 3 NATS servers"),
        ({"nodes": 3}, "3 nodes in 8 clusters: each cluster needs a node"),
        ({"servers": 3, "external": ("h",)}, "several NATS servers of one machine are for trying"),
        ({"services": ("executor",)}, "executor belongs to a cluster: name it with --worker"),
        ({"services": ("multikueue",)}, "multikueue belongs to a cluster: name it with --hub"),
        ({"services": ("karmada",)}, "karmada belongs to a cluster: name it with --karmada"),
        ({"services": ("inventory",)}, "inventory belongs to a cluster: name it with --worker"),
        ({"replicas": {"executor": 2}}, "2 of executor: there is one for each cluster"),
        (
            {"services": ("executor",), "workers": (KubeTarget(name="a"),)},
            "--namespaces is missing",
        ),
        (
            {"workers": (KubeTarget(name="a"), KubeTarget(name="a", context="b"))},
            "two workers are named 'a': give one another name",
        ),
        (
            {"workers": tuple(KubeTarget(name=f"w{n}") for n in range(21))},
            "21 workers: from here 20 at most can be served",
        ),
    ],
)
def test_options_that_make_no_plan_are_told(options: dict[str, object], said: str) -> None:
    with pytest.raises(PlanError) as told:
        entries(UpOptions(folder=HERE, **options))  # type: ignore[arg-type]
    assert str(told.value).startswith(said)


def test_beside_a_karmada_control_plane_there_are_no_emulated_clusters() -> None:
    plane = KubeTarget(name="karmada", context="karmada-apiserver")
    options = UpOptions(folder=HERE, services=defaults(None, (), plane), karmada=plane)
    beside = Entry("karmada", "karmada", "karmada", ("--context", "karmada-apiserver"), "karmada")
    assert entries(options) == [
        *(Entry(name, name, name) for name in (*PIPELINE, "dashboard")),
        beside,
    ]


def test_a_hub_and_its_workers_get_their_services_and_no_emulator() -> None:
    hub = KubeTarget(name="hub", context="kind-hub")
    workers = (
        KubeTarget(name="berlin", kubeconfig=Path("/k/b.yaml"), context="admin@b"),
        KubeTarget(name="arn:aws/x", context="arn:aws/x"),
    )
    options = UpOptions(
        folder=HERE,
        services=defaults(hub, workers),
        hub=hub,
        workers=workers,
        mode="dispatch",
        namespaces=("ml", "research"),
    )
    file = ("--kubeconfig", "/k/b.yaml", "--context", "admin@b")
    allowed = ("--namespaces", "ml,research")
    odd = ("--cluster", "arn:aws/x")
    assert entries(options) == [
        *(Entry(name, name, name) for name in (*PIPELINE, "dashboard")),
        Entry("members", "members", "members", ("--context", "kind-hub"), "hub"),
        Entry(
            "multikueue",
            "multikueue",
            "multikueue",
            ("--mode", "dispatch", "--context", "kind-hub"),
            "hub",
        ),
        Entry(
            "inventory-berlin",
            "inventory",
            "inventory.berlin",
            ("--cluster", "berlin", *file),
            "berlin",
        ),
        Entry(
            "executor-berlin",
            "executor",
            "executor.berlin",
            ("--cluster", "berlin", *allowed, *file),
            "berlin",
        ),
        Entry(
            "figures-berlin",
            "figures",
            "figures.berlin",
            ("--cluster", "berlin", *allowed, *file),
            "berlin",
        ),
        # A name that cannot stand in a subject or a path is spelled so that it can.
        Entry(
            "inventory-arn=3Aaws=2Fx",
            "inventory",
            "inventory.arn=3Aaws=2Fx",
            (*odd, "--context", "arn:aws/x"),
            "arn:aws/x",
        ),
        Entry(
            "executor-arn=3Aaws=2Fx",
            "executor",
            "executor.arn=3Aaws=2Fx",
            (*odd, *allowed, "--context", "arn:aws/x"),
            "arn:aws/x",
        ),
        Entry(
            "figures-arn=3Aaws=2Fx",
            "figures",
            "figures.arn=3Aaws=2Fx",
            (*odd, *allowed, "--context", "arn:aws/x"),
            "arn:aws/x",
        ),
    ]
    # Without a hub nothing of the hub; from inside a cluster no way there has to be told.
    inside = UpOptions(folder=HERE, services=("inventory",), workers=(KubeTarget(name="b"),))
    assert entries(inside) == [
        Entry("inventory-b", "inventory", "inventory.b", ("--cluster", "b"), "b")
    ]
    assert defaults() == (*PIPELINE, "dashboard", "emulator")
    assert defaults(None, workers) == (
        *PIPELINE,
        "dashboard",
        "inventory",
        "executor",
        "figures",
    )


def test_a_bus_over_tls_is_told_to_every_service_with_whom_to_trust() -> None:
    [made] = planned(
        [Entry("gateway", "gateway", "gateway")],
        python="py",
        url="tls://h:1",
        creds_files={"gateway": HERE / "g.creds"},
        http_ports=[1],
        log_level="debug",
        ca_file=HERE / "ca.crt",
    )
    assert made.argv == (
        *("py", "-m", "berthmaster.cli.main", "serve", "gateway", "--nats-url", "tls://h:1"),
        *("--http-port", "1", "--log-level", "debug"),
        *("--nats-creds-file", "/data/g.creds", "--inbox-prefix", "_INBOX.gateway"),
        *("--nats-ca-file", "/data/ca.crt"),
    )


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("kind-hub", KubeTarget(name="kind-hub", context="kind-hub")),
        ("/k/b.yaml", KubeTarget(name="b", kubeconfig=Path("/k/b.yaml"))),
        ("/k/b.yaml:adm", KubeTarget(name="adm", kubeconfig=Path("/k/b.yaml"), context="adm")),
        ("w1=/k/b.yaml", KubeTarget(name="w1", kubeconfig=Path("/k/b.yaml"))),
        ("w1=/k/b.yaml:a:b", KubeTarget(name="w1", kubeconfig=Path("/k/b.yaml"), context="a:b")),
        ("w1=kind", KubeTarget(name="w1", context="kind")),
        ("arn:aws:eks:x", KubeTarget(name="arn:aws:eks:x", context="arn:aws:eks:x")),
        ("a/b=c", KubeTarget(name="a/b=c", context="a/b=c")),  # an equals sign in a context
    ],
)
def test_a_cluster_is_a_context_or_a_file_and_may_be_named(text: str, right: KubeTarget) -> None:
    assert kube_target(text, {Path("/k/b.yaml")}.__contains__) == right


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("/no/such", "'/no/such': there is no file /no/such"),
        ("./x.yaml:ctx", "'./x.yaml:ctx': there is no file ./x.yaml"),
        ("", "'': right is CONTEXT, FILE, FILE:CONTEXT, or NAME= before one"),
        ("c" * 3000, "give a shorter one as NAME="),
    ],
)
def test_a_cluster_that_is_none_is_told(text: str, said: str) -> None:
    with pytest.raises(PlanError) as told:
        kube_target(text, lambda path: False)
    assert said in str(told.value)


def test_a_folder_is_locked_by_one_process_at_a_time(tmp_path: Path) -> None:
    with (
        FolderLock(tmp_path),
        pytest.raises(AlreadyRunning, match=rf"already \(process {os.getpid()}\)"),
    ):
        FolderLock(tmp_path).__enter__()
    with FolderLock(tmp_path):
        pass


def test_what_is_made_in_a_locked_folder_is_for_its_user_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        new, older, strange = (tmp_path / name for name in ("new", "older", "strange"))
        older.mkdir()
        (older / "up.lock").touch()
        strange.mkdir()
        (strange / "others").touch()
        for folder, mode in ((new, 0o700), (older, 0o700), (strange, 0o755)):
            with FolderLock(folder):
                (folder / "data").write_text("x")
                assert stat.S_IMODE((folder / "data").stat().st_mode) == 0o600
            assert stat.S_IMODE(folder.stat().st_mode) == mode
        assert os.umask(0o022) == 0o022  # as it was
    finally:
        os.umask(before)


def test_exits_have_names() -> None:
    assert [describe_exit(code) for code in (0, 1, -9, -200)] == [
        "exit code 0",
        "exit code 1",
        "SIGKILL",
        "signal 200",
    ]


def test_workers_are_told_where_what_their_gpus_do_comes_from_and_what_is_missing() -> None:
    assert figures_from(UpOptions(folder=HERE)) == []
    workers = (KubeTarget(name="a b"),)
    told = figures_from(UpOptions(folder=HERE, workers=workers, services=("telemetry",)))
    assert [line[:40] for line in told] == [
        "What the GPUs of a b do is told by agent",
        "The telemetry agent here reads this mach",
        "Without --external nobody elsewhere reac",
    ]
    assert "`berth cluster add 'a b' --nodes`" in told[0]
    outside = UpOptions(folder=HERE, workers=workers, external=("hub.example.com",))
    assert len(figures_from(outside)) == 1
