import enum
from dataclasses import dataclass
from pathlib import Path

import pytest

from berthmaster.runtime.errors import SettingsError
from berthmaster.runtime.settings import (
    CommonSettings,
    describe,
    load,
    required,
    setting,
    unknown_variables,
)


class Source(enum.Enum):
    NVML = "nvml"
    DCGM = "dcgm"


@dataclass(frozen=True, kw_only=True)
class NodeSettings(CommonSettings):
    cluster: str = required(help="the cluster's name")
    source: Source = setting(Source.NVML, help="where figures come from")
    interval_s: float = setting(1.0, least=0.1, most=60, help="seconds between two reports")
    models: tuple[str, ...] = setting((), help="GPU models")
    ports: tuple[int, ...] = setting((1, 2), least=1, most=9, help="ports")
    sync: bool = setting(True, help="write to the disk each time")
    cache: Path | None = setting(None, help="where to keep things; 100% optional")


PORTS = "a whole number from 1 to 9, several with commas between them"


def read(*argv: str, **env: str) -> NodeSettings:
    return load(NodeSettings, "node-agent", argv, env)


def problems(*argv: str, **env: str) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        read(*argv, **env)
    return list(caught.value.problems)


def test_what_is_not_given_keeps_its_default() -> None:
    assert read("--cluster", "a") == NodeSettings(cluster="a")


def test_a_flag_wins_over_the_service_variable_over_the_common_one_over_the_default() -> None:
    common = {"BERTH_HTTP_PORT": "1"}
    own = {**common, "BERTH_NODE_AGENT_HTTP_PORT": "2"}
    assert read("--cluster=a").http_port == 0
    assert read("--cluster=a", **common).http_port == 1
    assert read("--cluster=a", **own).http_port == 2
    assert read("--cluster=a", "--http-port", "-1", **own).http_port == -1


def test_every_type_is_read_from_flags_and_from_variables() -> None:
    expected = NodeSettings(
        cluster="a",
        source=Source.DCGM,
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
    assert read(**{f"BERTH_NODE_AGENT_{key}": text for key, text in variables.items()}) == expected


def test_an_empty_text_means_nothing_where_nothing_is_allowed() -> None:
    assert read("--cluster=a", BERTH_NODE_AGENT_CACHE="").cache is None


@pytest.mark.parametrize(
    ("flag", "text", "right"),
    [
        ("--interval-s", "soon", "a number from 0.1 to 60"),
        ("--interval-s", "nan", "a number from 0.1 to 60"),
        ("--interval-s", "inf", "a number from 0.1 to 60"),
        ("--interval-s", "0.05", "a number from 0.1 to 60"),
        ("--http-port", "65536", "a whole number from -1 to 65535"),
        ("--http-port", "80.5", "a whole number from -1 to 65535"),
        ("--source", "guess", "one of nvml, dcgm"),
        ("--log-format", "xml", "one of json, text"),
        ("--ports", "3,10", PORTS),
        ("--ports", "1_0", PORTS),
        ("--ports", "٣", PORTS),
        ("--models", "A100,", "text, several with commas between them, none of them empty: [1] is"),
        (
            "--ports",
            "1, ,2",
            f"{PORTS}, none of them empty: [1] is",
        ),
        (
            "--nats-url",
            "nats://a,http://b",
            "nats://HOST:PORT (or tls, ws, wss), several with commas between them",
        ),
    ],
)
def test_a_wrong_value_is_told_with_its_flag_and_what_would_be_right(
    flag: str, text: str, right: str
) -> None:
    assert problems("--cluster=a", flag, text) == [
        f"{flag}: {text!r} is not right, expected {right}"
    ]


def test_a_wrong_variable_is_told_under_its_own_name() -> None:
    assert problems("--cluster=a", BERTH_NODE_AGENT_SYNC="perhaps") == [
        "BERTH_NODE_AGENT_SYNC (--sync): 'perhaps' is not right, expected true or false"
    ]


def test_all_problems_are_told_at_once_and_a_missing_setting_is_one() -> None:
    assert problems("--intervall-s", "3", "stray", BERTH_HTTP_PORT="x") == [
        "--intervall-s: no such flag; did you mean --interval-s?",
        "'stray': settings are given as --flag value; see --help",
        "BERTH_HTTP_PORT (--http-port): 'x' is not right, expected a whole number from -1 to 65535",
        "--cluster: missing, expected text; give the flag or set BERTH_NODE_AGENT_CLUSTER",
    ]


def test_a_flag_without_its_value_is_a_problem_and_not_an_exit() -> None:
    assert problems("--cluster") == ["argument --cluster: expected one argument; see --help"]


def test_secrets_are_neither_described_nor_repeated_in_complaints() -> None:
    seed = "SUAM" + "A" * 54
    hidden = read("--cluster=a", "--nats-creds-file", seed)
    assert describe(hidden)["nats_creds_file"] == "<hidden>"
    assert describe(hidden)["cluster"] == "a"
    assert seed not in repr(hidden)
    assert seed not in problems(seed)[0]


def test_help_shows_each_flag_with_its_variable_and_default(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        read("--help")
    assert ended.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "seconds between two reports [default 1.0; BERTH_NODE_AGENT_INTERVAL_S]" in shown
    assert "[required; BERTH_NODE_AGENT_CLUSTER]" in shown
    assert "100% optional" in shown


def test_variables_that_only_look_like_settings_are_found() -> None:
    env = {"BERTH_NODE_AGENT_CLUSTR": "a", "BERTH_NODE_AGENT_CLUSTER": "a", "BERTH_SCORER_X": "1"}
    assert unknown_variables(NodeSettings, "node-agent", env) == ["BERTH_NODE_AGENT_CLUSTR"]


def test_a_field_that_is_not_declared_as_a_setting_is_a_bug() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Careless(CommonSettings):
        limit: int = 3

    with pytest.raises(TypeError, match=r"Careless\.limit"):
        load(Careless, "careless", [], {})
