"""Seeds, JWTs and credentials, as files."""

import json
import os
import stat
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import nkeys
import pytest

from berthmaster.lib.access import claims
from berthmaster.lib.access.claims import ALWAYS
from berthmaster.lib.access.keys import (
    DEFAULT_USERS,
    KeysError,
    WasRemoved,
    account_jwts,
    account_key,
    creds_file,
    first_end,
    main,
    make_keys,
    remove_user,
    removed_accounts,
    removed_tenants,
    server_config,
    sign_user,
)
from berthmaster.lib.access.permissions import UnknownUser
from berthmaster.lib.nats import jwts
from berthmaster.lib.supervisor.embedded import Server, ServerConfig
from tests.support.patience import ANSWER_S, hang_s


def modes(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): oct(stat.S_IMODE(path.stat().st_mode))
        for path in folder.rglob("*")
        if path.is_file()
    }


def creds(folder: Path, user: str) -> jwts.Creds:
    return jwts.parse_creds(creds_file(folder, user).read_text())


def figures(server: Server, what: str) -> Any:
    with urllib.request.urlopen(f"{server.monitor_url}/{what}", timeout=ANSWER_S) as answer:
        return json.load(answer)


def test_what_is_secret_is_for_its_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    public = make_keys(folder, ["gateway", "tenant.acme"])
    assert oct(stat.S_IMODE(folder.stat().st_mode)) == "0o700"
    accounts = (*ALWAYS, "T_acme")
    assert modes(folder) == {
        "gateway.creds": "0o600",
        "tenant.acme.creds": "0o600",
        "accounts.conf": "0o644",
        "operator.seed": "0o600",
        "operator.jwt": "0o600",
        **{f"accounts/{name}.{kind}": "0o600" for name in accounts for kind in ("seed", "jwt")},
    }
    pair = nkeys.from_seed(creds(folder, "gateway").seed.encode())
    assert pair.public_key.decode() == public["gateway"]
    seeds = [path.read_text().strip() for path in folder.rglob("*.seed")]
    told = (folder / "accounts.conf").read_text()
    assert len(seeds) == 1 + len(accounts)
    assert not any(seed in told for seed in (*seeds, creds(folder, "gateway").seed))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_all_of_it_is_given_to_whom_it_is_for(tmp_path: Path) -> None:
    make_keys(tmp_path / "keys", ["gateway"], owner_uid=10_001)
    made = [tmp_path / "keys", *(tmp_path / "keys").rglob("*")]
    assert {path.stat().st_uid for path in made} == {10_001}


def test_a_user_is_in_its_account_and_an_account_is_the_operators(tmp_path: Path) -> None:
    make_keys(tmp_path, ["gateway", "tenant.acme", "accounts"])
    for user, account in (("gateway", "CORE"), ("tenant.acme", "T_acme"), ("accounts", "SYS")):
        said = jwts.decoded(creds(tmp_path, user).jwt)
        assert said["iss"] == account_key(tmp_path, account)
        assert "exp" not in said
    issuers = {jwts.decoded(jwt)["iss"] for jwt in account_jwts(tmp_path).values()}
    assert issuers == {jwts.public_key((tmp_path / "operator.seed").read_text().strip())}


def test_added_user_keeps_other_keys(tmp_path: Path) -> None:
    before = make_keys(tmp_path, ["gateway"])
    files = {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()}
    after = make_keys(tmp_path, ["tenant.acme"])
    assert {name: after[name] for name in before} == dict(before)
    assert set(after) == {"gateway", "tenant.acme"}
    del files[tmp_path / "accounts.conf"]
    assert {path: path.read_bytes() for path in files} == files


def test_rights_of_another_version_are_signed_anew_for_the_same_key(tmp_path: Path) -> None:
    public = make_keys(tmp_path, ["gateway"])
    had = creds(tmp_path, "gateway")
    old = claims.user(public["gateway"], "gateway", publish=("old",), subscribe=("old",))
    core = (tmp_path / "accounts" / "CORE.seed").read_text().strip()
    jwt = jwts.signed(old, core, now_s=1, ends_s=4e9)
    creds_file(tmp_path, "gateway").write_text(jwts.creds_text(had._replace(jwt=jwt)))
    make_keys(tmp_path, [])
    now = creds(tmp_path, "gateway")
    said, before = jwts.decoded(now.jwt), jwts.decoded(had.jwt)
    assert (now.seed, said["nats"]) == (had.seed, before["nats"])
    assert said["exp"] == 4_000_000_000  # its end is not put off by that


def test_signing_again_puts_the_end_off_and_keeps_the_key(tmp_path: Path) -> None:
    first = sign_user(tmp_path, "tenant.acme", days=1)
    second = sign_user(tmp_path, "tenant.acme", days=2)
    assert first.seed == second.seed
    ends = [jwts.decoded(each.jwt)["exp"] - time.time() for each in (first, second)]
    assert [round(end_s / 86_400) for end_s in ends] == [1, 2]
    make_keys(tmp_path, ["gateway"])  # for ever
    sign_user(tmp_path, "agent.red", days=1.5)
    assert first_end(tmp_path) == (
        jwts.decoded(creds(tmp_path, "agent.red").jwt)["exp"],
        "agent.red",
    )


def test_what_was_revoked_stays_so_when_a_tenant_comes_back(tmp_path: Path) -> None:
    make_keys(tmp_path, ["tenant.acme", "gateway"])
    key, old = account_key(tmp_path, "T_acme"), creds(tmp_path, "tenant.acme")
    assert remove_user(tmp_path, "tenant.acme")
    assert not remove_user(tmp_path, "tenant.acme")
    assert set(account_jwts(tmp_path)) == set(ALWAYS)
    until = jwts.decoded(removed_accounts(tmp_path)["T_acme"])["nats"]["revocations"]["*"]
    assert until >= jwts.decoded(old.jwt)["iat"]

    # Its jobs go by the name, so no command makes a key for the name by accident.
    assert removed_tenants(tmp_path) == {"acme"}
    for come_back in (
        lambda: sign_user(tmp_path, "tenant.acme", days=1),
        lambda: sign_user(tmp_path, "viewer.acme", days=1),
        lambda: make_keys(tmp_path, ["tenant.acme"]),
    ):
        with pytest.raises(WasRemoved, match="reads the jobs, history and Secrets of that one"):
            come_back()
    make_keys(tmp_path, ["gateway"])
    assert set(account_jwts(tmp_path)) == set(ALWAYS)

    again = sign_user(tmp_path, "tenant.acme", days=1, again=True)
    said = jwts.decoded(account_jwts(tmp_path)["T_acme"])
    assert (said["sub"], said["nats"]["revocations"]) == (key, {"*": until})
    assert jwts.decoded(again.jwt)["iat"] > until
    assert (removed_accounts(tmp_path), removed_tenants(tmp_path)) == ({}, set())

    # And what it came back with is revoked when it goes again, be it in the same second.
    remove_user(tmp_path, "tenant.acme")
    later = jwts.decoded(removed_accounts(tmp_path)["T_acme"])["nats"]["revocations"]["*"]
    assert later >= jwts.decoded(again.jwt)["iat"]


def test_a_clusters_account_goes_with_its_last_user(tmp_path: Path) -> None:
    public = make_keys(tmp_path, ["agent.red", "telemetry.red"])
    remove_user(tmp_path, "agent.red")
    said = jwts.decoded(account_jwts(tmp_path)["C_red"])
    assert list(said["nats"]["revocations"]) == [public["agent.red"]]
    remove_user(tmp_path, "telemetry.red")
    assert "C_red" not in account_jwts(tmp_path)


def test_removed_cluster_comes_back_only_as_the_same_one(tmp_path: Path) -> None:
    make_keys(tmp_path, ["agent.red", "telemetry.red"])
    for user in ("telemetry.red", "agent.red"):
        remove_user(tmp_path, user)
    for come_back in (
        lambda: sign_user(tmp_path, "agent.red", days=1),
        lambda: sign_user(tmp_path, "telemetry.red", days=1),
        lambda: make_keys(tmp_path, ["executor.red"]),
    ):
        with pytest.raises(WasRemoved, match=r"cluster 'red' was removed .* cluster add red --aga"):
            come_back()
    assert "C_red" not in account_jwts(tmp_path)
    sign_user(tmp_path, "agent.red", days=1, again=True)
    sign_user(tmp_path, "telemetry.red", days=1)
    assert "C_red" in account_jwts(tmp_path)


def test_the_key_of_one_user_of_core_is_revoked_alone(tmp_path: Path) -> None:
    public = make_keys(tmp_path, ["gateway", "door"])
    assert remove_user(tmp_path, "door")
    said = jwts.decoded(account_jwts(tmp_path)["CORE"])
    assert list(said["nats"]["revocations"]) == [public["door"]]


def test_a_server_is_told_of_accounts_that_are_and_of_none_that_were(tmp_path: Path) -> None:
    keys, resolver = tmp_path / "keys", tmp_path / "resolver"
    make_keys(keys, ["tenant.acme", "tenant.rival"])
    first = server_config(keys, resolver)
    assert "tenant" not in first  # loaded when they are used, from the folder
    assert len(list(resolver.glob("*.jwt"))) == len(ALWAYS) + 2
    gone = account_key(keys, "T_rival")
    remove_user(keys, "tenant.rival")
    server_config(keys, resolver)
    there = {path.stem for path in resolver.glob("*.jwt")}
    assert (len(there), gone in there) == (len(ALWAYS) + 1, False)


def test_a_server_has_built_what_all_import_from_before_a_client_comes(tmp_path: Path) -> None:
    """When the first clients do it, all at once, imports are lost: a tenant's requests, or a
    service's to JetStream, find nobody until the server is started anew."""
    keys = tmp_path / "keys"
    make_keys(keys, ["gateway", "usage", "login", "tenant.acme"])
    config = ServerConfig(sync="default", extra=server_config(keys, tmp_path / "jwt"))
    with Server(tmp_path / "nats", config) as server:
        built = figures(server, "accountz")["accounts"]
        assert {account_key(keys, name) for name in ALWAYS} <= set(built)
        for name in ALWAYS:
            key = account_key(keys, name)
            account = figures(server, f"accountz?acc={key}")["account_detail"]
            said = jwts.decoded(account_jwts(keys)[name])["nats"]
            asked = {each["subject"] for each in said.get("imports", ())}
            assert account["complete"], name
            assert asked <= {each["subject"] for each in account.get("imports", ())}, name


def test_an_unknown_user_leaves_the_folder_unmade(tmp_path: Path) -> None:
    with pytest.raises(UnknownUser):
        make_keys(tmp_path / "keys", ["gateway", "janitor"])
    assert not (tmp_path / "keys").exists()


@pytest.mark.parametrize("file", ["gateway.creds", "operator.seed", "accounts/CORE.seed"])
def test_a_file_that_holds_something_else_is_named_and_not_shown(tmp_path: Path, file: str) -> None:
    make_keys(tmp_path, ["gateway"])
    (tmp_path / file).write_text("SUAHUNTER2")
    with pytest.raises(KeysError, match=rf"{file} holds no ") as caught:
        make_keys(tmp_path, ["gateway"])
    assert "HUNTER2" not in str(caught.value)


def test_the_command_line_names_users_and_no_seed(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "berthmaster.lib.access.keys",
            str(tmp_path),
            "--user",
            "tenant.acme",
        ],
        capture_output=True,
        text=True,
        timeout=hang_s(),
        check=False,
    )
    users = sorted([*DEFAULT_USERS, "tenant.acme"])
    said = f"{tmp_path}/accounts.conf: {len(users)} users: {', '.join(users)}\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, said, "")


def test_the_command_line_refuses_a_user_it_does_not_know(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path), "--user", "janitor"]) == 2
    assert capsys.readouterr().err.startswith("keys: no user 'janitor'; there are setup, ")
