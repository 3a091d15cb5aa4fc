"""A data folder from before accounts: keys and messages come over, and it can begin again."""

import os
import shutil
from pathlib import Path

import nkeys
import pytest

from berthmaster.bus import claims
from berthmaster.bus.connection import Connection
from berthmaster.bus.embedded import Server, ServerConfig
from berthmaster.bus.event_subjects import event_subject
from berthmaster.bus.keys import KeysError, account_key, creds_file, make_keys, server_config
from berthmaster.bus.permissions import inbox_prefix
from berthmaster.bus.streams import WORKLOADS, ensure_streams, stream_info
from berthmaster.cli.keys_commands import carry_over
from berthmaster.messages.families import encode
from tests.bus.tools import Lines, Settings, connected, story, submitted
from tests.support.patience import ANSWER_S

USERS = ("setup", "gateway", "tenant.acme", "restorer", "agent.red")


async def old_folder(data: Path) -> dict[str, str]:
    """As the version before left it: seeds, users.conf and streams of the account BERTH."""
    keys = data / "keys"
    keys.mkdir(parents=True)
    public = {}
    for user in USERS:
        seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
        (keys / f"{user}.nk").write_bytes(seed + b"\n")
        public[user] = nkeys.from_seed(seed).public_key.decode()
    users = ", ".join(f"{{ nkey: {key} }}" for key in public.values())
    (keys / "users.conf").write_text(f"accounts {{ BERTH {{ users: [{users}] }} }}\n")
    static = (
        "accounts { BERTH { jetstream: enabled, users: [ { user: u, password: p } ] }, SYS {} }\n"
        "system_account: SYS\nno_auth_user: u\n"
    )
    with Server(data, ServerConfig(sync="default", extra=static)) as server:
        async with connected(server.url, replicas=1) as conn:
            for number in range(20):
                event = submitted(f"job-{number}")
                await conn.store(event_subject(event), encode(event))
            assert (await stream_info(conn, WORKLOADS)).state.last_seq == 20
    return public


@story
async def test_keys_and_messages_are_those_of_before(tmp_path: Path) -> None:
    data = tmp_path / "berth"
    public = await old_folder(data)
    with pytest.raises(KeysError, match="`berth keys migrate --data"):
        make_keys(data / "keys", ["gateway"])

    # Ended after the keys were made and before the messages were moved: it begins again.
    half = tmp_path / "half"
    shutil.copytree(data, half)
    messages = half / "jetstream" / "jetstream" / "BERTH"
    aside = messages.rename(messages.with_name("ASIDE"))
    shutil.copytree(half / "keys", tmp_path / "old-keys")
    carry_over(half)
    shutil.copytree(tmp_path / "old-keys", half / "keys", dirs_exist_ok=True)
    aside.rename(messages)

    for folder in (data, half):
        assert carry_over(folder).endswith("credentials for 5 users; messages are kept")
        keys = folder / "keys"
        assert not [*keys.glob("*.nk"), *keys.glob("users.conf")]
        assert make_keys(keys, []) == public
        config = ServerConfig(sync="default", extra=server_config(keys, folder / "accounts"))
        with Server(folder, config) as server:
            who = Settings(server.url, creds_file(keys, "gateway"), inbox_prefix("gateway"))
            async with await Connection.open(who, "gateway", Lines(), timeout_s=ANSWER_S) as conn:
                assert (await stream_info(conn, WORKLOADS)).state.last_seq == 20
                event = submitted("job-20")
                assert await conn.store(event_subject(event), encode(event)) == 21
            setup = Settings(server.url, creds_file(keys, "setup"), inbox_prefix("setup"))
            async with await Connection.open(setup, "setup", Lines(), timeout_s=ANSWER_S) as conn:
                await ensure_streams(conn)  # those that are there are what it expects


def test_the_folder_of_several_servers_is_refused_with_what_helps(tmp_path: Path) -> None:
    (tmp_path / "server-1" / "jetstream" / "jetstream" / "BERTH").mkdir(parents=True)
    (tmp_path / "keys").mkdir()
    with pytest.raises(KeysError, match=r"`berth backup FOLDER`; with this one, .*`berth restore"):
        carry_over(tmp_path)
    assert not list((tmp_path / "keys").iterdir())


def test_keys_without_messages_beside_them_are_told_what_to_do_where_those_are(
    tmp_path: Path,
) -> None:
    keys = tmp_path / "keys"
    keys.mkdir()
    seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
    (keys / "gateway.nk").write_bytes(seed)
    said = carry_over(tmp_path)
    assert f"rename the folder jetstream/BERTH to {account_key(keys, 'STREAMS')}" in said
    assert creds_file(keys, "gateway").exists()


def test_a_seed_that_is_none_is_named_and_nothing_is_dropped(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.mkdir()
    (keys / "gateway.nk").write_text("SUHUNTER2")
    with pytest.raises(KeysError, match=r"gateway\.nk: no nkey seed") as caught:
        carry_over(tmp_path)
    assert "HUNTER2" not in str(caught.value)
    assert (keys / "gateway.nk").exists()


def test_messages_of_both_forms_are_for_a_person_to_choose(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    make_keys(keys, ["gateway"])
    streams = claims.public_key((keys / "accounts" / "STREAMS.seed").read_text().strip())
    for name in ("BERTH", streams):
        (tmp_path / "jetstream" / "jetstream" / name).mkdir(parents=True)
    with pytest.raises(KeysError, match="which of them holds the messages"):
        carry_over(tmp_path)
