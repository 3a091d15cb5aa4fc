"""Which services `berth up` is asked for, and where the other commands find it."""

from pathlib import Path

import pytest

from berthmaster.cli.context.target import BusTarget, find_connection, find_target
from berthmaster.cli.up.commands import services_of
from berthmaster.lib.supervisor.folder import (
    CONNECTION_FILE,
    EXTERNAL_FILE,
    ConnectionFile,
    read_external,
    remove_connection,
    write_connection,
)
from berthmaster.lib.supervisor.plan import PlanError

HERE = Path("/data")


def test_services_are_named_with_their_number() -> None:
    assert services_of("gateway, resolver=2") == (("gateway", "resolver"), {"resolver": 2})
    assert services_of(None)[0][0] == "gateway"
    with pytest.raises(PlanError, match="right is NAME or NAME=N"):
        services_of("resolver=two")


def find(cwd: Path, env: dict[str, str] | None = None, **flags: str | None) -> BusTarget:
    given = {"server": None, "tenant": None, "creds_file": None, **flags}
    return find_target(**given, data=None, env=env or {}, cwd=cwd)


def test_a_connection_file_of_no_text_is_as_good_as_none(tmp_path: Path) -> None:
    (tmp_path / ".berth").mkdir()
    (tmp_path / ".berth" / CONNECTION_FILE).write_bytes(b'{"url":"\xff"}')
    assert find_connection(None, {}, tmp_path) is None
    (tmp_path / EXTERNAL_FILE).write_bytes(b'{"url":"\xff"}')
    assert read_external(tmp_path) == ""


def test_a_flag_wins_over_the_environment_and_that_over_the_connection_file(
    tmp_path: Path,
) -> None:
    file = ConnectionFile(
        url="nats://file:1", tenant="lab", creds_file="/s.creds", inbox_prefix="_I.o"
    )
    (tmp_path / ".berth").mkdir()
    write_connection(tmp_path / ".berth", file, {})
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    source = str(tmp_path / ".berth" / "connection.json")

    found = find(deep)
    assert found == BusTarget(
        url="nats://file:1", tenant="lab", creds_file="/s.creds", inbox_prefix="_I.o", source=source
    )
    # A server that is named is another one: neither seed nor tenant of the file belong to it.
    env = {"BERTH_NATS_URL": "nats://env:1", "BERTH_TENANT": "t"}
    assert find(deep, env) == BusTarget(
        url="nats://env:1",
        tenant="t",
        creds_file="",
        inbox_prefix="_INBOX",
        source="BERTH_NATS_URL",
    )
    assert find(deep, env, server="nats://flag:1", tenant="u").url == "nats://flag:1"
    assert find(deep, tenant="other").tenant == "other"
    assert find(deep, env | {"BERTH_NATS_PLAINTEXT": "true"}).plaintext
    # Another user's seed has another inbox, which its name tells.
    assert find(deep, creds_file="k/tenant.acme.creds").inbox_prefix == "_INBOX.tenant.acme"
    assert find(deep, creds_file="k/unheard-of.creds").inbox_prefix == "_I.o"


def test_the_last_up_of_this_user_is_found_from_anywhere_until_it_ends(tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path / "state")}
    folder = tmp_path / "somewhere" / "data"
    folder.mkdir(parents=True)
    elsewhere = tmp_path / "else"
    elsewhere.mkdir()
    assert find(elsewhere, env).source == "the default; no `berth up` was found here"
    named = find(elsewhere, {**env, "BERTH_DATA": str(folder)}).source
    assert named == f"the default; no `berth up` runs on {folder}"
    write_connection(folder, ConnectionFile(url="nats://x:1"), env)
    assert find(elsewhere, env).url == "nats://x:1"
    remove_connection(folder, env)
    assert find(elsewhere, env).url == "nats://127.0.0.1:4222"
