from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click
import pytest
from click.testing import CliRunner

from berthmaster.lib.runtime.settings import (
    CommonSettings,
    command,
    describe,
    load,
    required,
    setting,
    unknown_variables,
)


@dataclass(frozen=True, kw_only=True)
class NodeSettings(CommonSettings):
    cluster: str = required(help="the cluster's name")
    source: Literal["nvml", "dcgm"] = setting("nvml", help="where figures come from")
    interval_s: float = setting(1.0, least=0.1, most=60, help="seconds between two reports")
    models: tuple[str, ...] = setting((), help="GPU models")
    ports: tuple[int, ...] = setting((1, 2), least=1, most=9, help="ports")
    sync: bool = setting(True, help="write to the disk each time")
    cache: Path | None = setting(None, help="where to keep things; 100% optional")
    owner: str = setting(
        "a", secret=True, check=lambda text: "" if text < "b" else "a or less", help="owner"
    )


def read(*argv: str) -> NodeSettings:
    return load(NodeSettings, "node-agent", argv)


def problem(*argv: str) -> str:
    with pytest.raises(click.UsageError) as caught:
        read(*argv)
    return caught.value.format_message()


def test_settings_without_flags_have_their_defaults() -> None:
    assert read("--cluster", "a") == NodeSettings(cluster="a")


def test_flag_wins_over_service_variable_over_common_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert read("--cluster=a").http_port == 0
    monkeypatch.setenv("BERTH_HTTP_PORT", "1")
    assert read("--cluster=a").http_port == 1
    monkeypatch.setenv("BERTH_NODE_AGENT_HTTP_PORT", "2")
    assert read("--cluster=a").http_port == 2
    assert read("--cluster=a", "--http-port", "-1").http_port == -1


def test_every_type_is_read_from_flags_and_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = NodeSettings(
        cluster="a",
        source="dcgm",
        interval_s=0.5,
        models=("T4", "A100"),
        ports=(3,),
        sync=False,
        cache=Path("/x"),
        log_level="debug",
    )
    flags = (
        "--cluster a --source dcgm --interval-s .5 --models T4,A100 --ports 3 --no-sync "
        "--cache /x --log-level debug"
    )
    assert read(*flags.split()) == expected
    variables = {
        "CLUSTER": "a",
        "SOURCE": "dcgm",
        "INTERVAL_S": "0.5",
        "MODELS": "T4, A100",
        "PORTS": "3",
        "SYNC": "no",
        "CACHE": "/x",
        "LOG_LEVEL": "debug",
    }
    for key, text in variables.items():
        monkeypatch.setenv(f"BERTH_NODE_AGENT_{key}", text)
    assert read() == expected


def test_empty_variable_counts_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTH_NODE_AGENT_CACHE", "")
    assert read("--cluster=a").cache is None


@pytest.mark.parametrize(
    ("flag", "text", "right"),
    [
        ("--interval-s", "soon", "'soon' is not a valid float"),
        ("--interval-s", "nan", "'nan' is not finite"),
        ("--interval-s", "0.05", "0.05 is not in the range 0.1<=x<=60"),
        ("--http-port", "65536", "65536 is not in the range -1<=x<=65535"),
        ("--http-port", "80.5", "'80.5' is not a valid integer range"),
        ("--source", "guess", "'guess' is not one of 'nvml', 'dcgm'"),
        ("--ports", "3,10", "10 is not in the range 1<=x<=9"),
        ("--models", "A100,", "'A100,': value [1] between the commas is empty"),
        ("--cache", "", "the path is empty"),
        ("--owner", "c", "<hidden> is not right, expected a or less"),
        (
            "--nats-url",
            "http://b",
            "'http://b' is not right, expected nats://HOST:PORT (or tls, ws, wss)",
        ),
    ],
)
def test_wrong_value_is_named_with_flag_variable_and_what_is_right(
    flag: str, text: str, right: str
) -> None:
    told = problem("--cluster=a", flag, text)
    assert told.startswith(f"Invalid value for '{flag}' (env var: 'BERTH_NODE_AGENT_")
    assert right in told


def test_missing_setting_is_named_with_its_variable() -> None:
    assert "'--cluster' (env var: 'BERTH_NODE_AGENT_CLUSTER')" in problem()


def test_misspelt_flag_is_answered_with_the_nearest() -> None:
    assert "--interval-s" in problem("--cluster=a", "--intervall-s", "3")


def test_secrets_are_neither_described_nor_repeated_in_errors() -> None:
    seed = "SUAM" + "A" * 54
    hidden = read("--cluster=a", "--nats-creds-file", seed)
    assert describe(hidden)["nats_creds_file"] == "<hidden>"
    assert describe(hidden)["cluster"] == "a"
    assert seed not in repr(hidden)
    assert seed not in problem("--cluster=a", seed)
    assert seed not in problem("--cluster=a", f"--{seed}")


def test_help_shows_each_flag_with_variable_default_and_range() -> None:
    shown = CliRunner().invoke(command(NodeSettings, "node-agent", print), ["--help"])
    text = " ".join(shown.output.split())
    assert "seconds between two reports [env var: BERTH_NODE_AGENT_INTERVAL_S; default: 1.0" in text
    assert "0.1<=x<=60" in text
    assert "100% optional" in text


def test_variables_that_only_look_like_settings_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("NODE_AGENT_CLUSTR", "NODE_AGENT_CLUSTER", "SCORER_X"):
        monkeypatch.setenv(f"BERTH_{key}", "a")
    assert unknown_variables(NodeSettings, "node-agent") == ["BERTH_NODE_AGENT_CLUSTR"]


def test_field_that_is_not_declared_as_a_setting_is_a_bug() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Careless(CommonSettings):
        limit: int = 3

    with pytest.raises(TypeError, match=r"Careless\.limit"):
        load(Careless, "careless")
