"""Several buses under names of their own: kept for their owner alone, chosen in a stated order."""

import stat
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from berthmaster.cli.context.file import Context, Contexts, ContextsWrong, load_contexts
from berthmaster.cli.context.target import BusTarget, find_target
from berthmaster.cli.main import berth


def run(home: Path, *argv: str) -> Result:
    return CliRunner(env={"XDG_CONFIG_HOME": str(home)}).invoke(berth, argv)


def find(home: Path, env: dict[str, str] | None = None, **flags: str | None) -> BusTarget:
    given = {"server": None, "tenant": None, "creds_file": None, **flags}
    env = {"XDG_CONFIG_HOME": str(home)} | (env or {})
    return find_target(**given, data=None, env=env, cwd=home)


def test_contexts_are_made_used_changed_and_forgotten(tmp_path: Path) -> None:
    assert "`berth context set NAME` makes one" in run(tmp_path, "context", "list").stdout
    key = tmp_path / "tenant.vision.creds"
    made = run(tmp_path, "context", "set", "lab", "--server", "tls://lab:4222",
               "--tenant", "vision", "--queue", "night", "--creds-file", str(key))  # fmt: skip
    assert made.output == "lab: tls://lab:4222, tenant vision; is used\n"
    other = run(tmp_path, "context", "set", "prod", "--server", "tls://prod:4222")
    assert other.output == "prod: tls://prod:4222; `berth context use prod` uses it\n"
    run(tmp_path, "context", "set", "prod", "--tenant", "speech")  # the rest stays

    lab = Context(server="tls://lab:4222", tenant="vision", queue="night", creds_file=str(key))
    prod = Context(server="tls://prod:4222", tenant="speech")
    folder = tmp_path / "berth"
    assert load_contexts(folder) == Contexts(current="lab", contexts={"lab": lab, "prod": prod})
    assert stat.S_IMODE((folder / "contexts.json").stat().st_mode) == 0o600

    assert (
        run(tmp_path, "context", "use", "prod").output
        == "prod: tls://prod:4222, tenant speech; is used\n"
    )
    assert run(tmp_path, "context", "remove", "prod").output == "prod is forgotten; none is used\n"
    assert load_contexts(folder) == Contexts(contexts={"lab": lab})
    assert [each.name for each in folder.iterdir()] == ["contexts.json"]  # nothing half written


def test_what_is_nearer_to_the_command_wins(tmp_path: Path) -> None:
    run(tmp_path, "context", "set", "lab", "--server", "nats://lab:1", "--tenant", "vision",
        "--queue", "night", "--creds-file", "/k/tenant.vision.creds")  # fmt: skip
    run(tmp_path, "context", "set", "prod", "--server", "nats://prod:1")
    lab = BusTarget(
        url="nats://lab:1",
        tenant="vision",
        creds_file="/k/tenant.vision.creds",
        inbox_prefix="_INBOX.tenant.vision",
        source="the context lab, `berth context use`",
        queue="night",
    )
    assert find(tmp_path) == lab  # the first one made is used
    assert find(tmp_path, tenant="speech").tenant == "speech"
    assert find(tmp_path, {"BERTH_CONTEXT": "prod"}).url == "nats://prod:1"
    assert find(tmp_path, {"BERTH_CONTEXT": "prod"}, context="lab").url == "nats://lab:1"
    # A server that is named is another bus: neither tenant nor key of the context go there.
    named = find(tmp_path, {"BERTH_NATS_URL": "nats://env:1", "BERTH_CONTEXT": "lab"})
    assert (named.url, named.tenant, named.creds_file) == ("nats://env:1", "default", "")
    assert find(tmp_path, {"BERTH_NATS_URL": "nats://env:1"}, context="prod").url == "nats://prod:1"
    assert "no `berth up` runs on" in find(tmp_path, {"BERTH_DATA": "/none"}).source


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (
            ("context", "use", "prud"),
            "there is no context 'prud', did you mean prod?; there are: prod",
        ),
        (("context", "remove", "x"), "there is no context 'x'; there are: prod"),
        (("context", "set", "new"), "--server is missing: new is new, and where is its bus?"),
        (("context", "set", "a b", "--server", "s"), "'a b' is no name; right is up to 63 letters"),
        (("jobs", "--context", "prud"), "did you mean prod?"),
    ],
)
def test_what_cannot_be_is_told_with_what_would_be_right(
    tmp_path: Path, argv: tuple[str, ...], said: str
) -> None:
    run(tmp_path, "context", "set", "prod", "--server", "nats://prod:1")
    done = run(tmp_path, *argv)
    assert (done.exit_code, said in done.output) == (2, True), done.output


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "cannot be read"),
        ('{"contexts": {"a": {}}}', "missing required field `server`"),
        ('{"contexts": {"a": {"server": "s", "sever": "t"}}}', "unknown field `sever`"),
        ('{"current": "b", "contexts": {}}', "current is 'b', which is none of its contexts"),
        ("\xff", "cannot be read"),
    ],
)
def test_a_file_that_is_wrong_is_named_and_not_overwritten(
    tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "berth" / "contexts.json"
    file.parent.mkdir()
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(ContextsWrong, match=said.replace("`", "`")) as told:
        load_contexts(file.parent)
    assert str(file) in str(told.value)
    assert run(tmp_path, "context", "set", "a", "--server", "s").exit_code == 2
    assert file.read_bytes() == text.encode("latin-1")
