"""Seeds and the server's configuration, as files."""

import subprocess
import sys
from pathlib import Path

import nkeys
import pytest

from berthmaster.bus.keys import DEFAULT_USERS, KeysError, main, make_keys, seed_file
from berthmaster.bus.permissions import UnknownUser, render


def modes(folder: Path) -> dict[str, str]:
    return {path.name: oct(path.stat().st_mode & 0o777) for path in folder.iterdir()}


def test_seeds_are_for_their_owner_only_and_match_the_configuration(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    public = make_keys(folder, ["gateway", "tenant.acme"])
    assert oct(folder.stat().st_mode & 0o777) == "0o700"
    assert modes(folder) == {
        "gateway.nk": "0o600",
        "tenant.acme.nk": "0o600",
        "users.conf": "0o644",
    }
    pair = nkeys.from_seed(seed_file(folder, "gateway").read_bytes().strip())
    assert pair.public_key.decode() == public["gateway"]
    assert (folder / "users.conf").read_text() == render(public)


def test_a_user_more_changes_nobody_elses_key(tmp_path: Path) -> None:
    before = make_keys(tmp_path, ["gateway"])
    after = make_keys(tmp_path, ["tenant.acme"])
    assert {name: after[name] for name in before} == dict(before)
    assert set(after) == {"gateway", "tenant.acme"}


def test_an_unknown_user_leaves_the_folder_unmade(tmp_path: Path) -> None:
    with pytest.raises(UnknownUser):
        make_keys(tmp_path / "keys", ["gateway", "janitor"])
    assert not (tmp_path / "keys").exists()


def test_a_file_that_is_no_seed_is_named_and_not_shown(tmp_path: Path) -> None:
    seed_file(tmp_path, "gateway").write_text("SUAHUNTER2")
    with pytest.raises(KeysError, match=r"gateway\.nk holds no nkey seed") as caught:
        make_keys(tmp_path, ["gateway"])
    assert "HUNTER2" not in str(caught.value)


def test_the_command_line_names_users_and_no_seed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "berthmaster.bus.keys", str(tmp_path), "--user", "tenant.acme"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    users = sorted([*DEFAULT_USERS, "tenant.acme"])
    said = f"{tmp_path}/users.conf: {len(users)} users: {', '.join(users)}\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, said, "")
    for user in users:
        assert seed_file(tmp_path, user).read_text().strip() not in done.stdout


def test_the_command_line_refuses_a_user_it_does_not_know(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path), "--user", "janitor"]) == 2
    assert capsys.readouterr().err.startswith("keys: no user 'janitor'; there are setup, ")
