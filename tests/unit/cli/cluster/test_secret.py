import stat
from pathlib import Path

import yaml

from berthmaster.cli.cluster import secret
from berthmaster.lib.access.permissions import inbox_prefix
from berthmaster.lib.nats.subjects import token

INSTALL = (
    "helm --kube-context 'a b' -n ns upgrade --install --create-namespace "
    "--reset-then-reuse-values berth-agent deploy/chart -f deploy/run/images.yaml"
)


def test_the_secret_holds_what_an_agent_needs_and_no_name_can_break_out_of_it() -> None:
    name = 'b"\nkind: Pod # '
    text = secret.manifest(
        cluster=name,
        namespaces=["ml", "research"],
        namespace="berth-system",
        url="tls://h:4222",
        creds="SUSEED\n",
        ca="-----\nX\n",
    )
    assert yaml.safe_load(text) == {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": "berth-agent",
            "namespace": "berth-system",
            "labels": {"app.kubernetes.io/part-of": "berthmaster"},
        },
        "type": "Opaque",
        "stringData": {
            "cluster": name,
            "namespaces": "ml,research",
            "url": "tls://h:4222",
            "inbox": inbox_prefix(f"agent.{token(name)}"),
            "agent.creds": "SUSEED\n",
            "ca.crt": "-----\nX\n",
        },
    }


def test_its_file_is_for_its_owner_alone_whatever_was_there_before(tmp_path: Path) -> None:
    file = tmp_path / "clusters" / "berlin.yaml"
    secret.write(file, "one")
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("one", 0o600)
    file.chmod(0o644)
    secret.write(file, "two")
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("two", 0o600)
    # A link that somebody left there is replaced, not followed.
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    file.unlink()
    file.symlink_to(elsewhere)
    secret.write(file, "three")
    assert (file.read_text(), elsewhere.read_text(), file.is_symlink()) == ("three", "mine", False)


def test_commands_can_be_pasted_whatever_the_names_are() -> None:
    assert secret.commands("a b", Path("/x/$(id).yaml"), "ns", ["m;l"]) == [
        INSTALL + " --set role=worker --set 'worker.namespaces={m;l}'",
        "kubectl --context 'a b' apply -f '/x/$(id).yaml' && rm '/x/$(id).yaml'",
    ]
    logging_in = secret.commands("b", Path("/x/y.yaml"), "ns", ["ml"], login=True)
    assert logging_in[0].endswith(" --set worker.login=true")
    assert secret.commands_of_nodes("a b", "ns", Path("/x/$(id).yaml")) == [
        f"{INSTALL} --set role=worker --set worker.telemetry=nodes",
        "kubectl --context 'a b' apply -f '/x/$(id).yaml' && rm '/x/$(id).yaml'",
    ]
