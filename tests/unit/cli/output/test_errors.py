"""What somebody who misspelt a name may have meant."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from berthmaster.cli.completion import SHELLS
from berthmaster.cli.main import COMMANDS, berth
from berthmaster.cli.output.errors import did_you_mean
from berthmaster.lib.messages.explain import nearest


@pytest.mark.parametrize(
    ("word", "meant"),
    [("cordn", "cordon"), ("sumbit", "submit"), ("JOBS", "jobs"), ("zebra", ""), ("", "")],
)
def test_the_most_alike_is_named_and_nothing_far_off(word: str, meant: str) -> None:
    assert nearest(word, COMMANDS) == meant


def test_the_name_itself_is_no_advice() -> None:
    assert did_you_mean("jobs", COMMANDS) == ""
    assert did_you_mean("job s", COMMANDS) == ", did you mean jobs?"


def test_a_command_that_is_none_is_answered_with_the_nearest() -> None:
    done = CliRunner().invoke(berth, ["sumbit", "--gpus", "1"])
    assert done.exit_code == 2
    assert "there is no command 'sumbit', did you mean submit?" in done.output


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_gets_its_script_and_commands_are_completed(shell: str) -> None:
    script = CliRunner().invoke(berth, ["completion", shell], prog_name="berth").output
    assert "_BERTH_COMPLETE" in script
    at = "unc" if shell == "fish" else "1"  # which of the words, or the word itself
    asked = {"_BERTH_COMPLETE": f"{shell}_complete", "COMP_WORDS": "berth unc", "COMP_CWORD": at}
    done = CliRunner(env=asked).invoke(berth, prog_name="berth")
    assert "uncordon" in done.output


@pytest.mark.parametrize(
    "words", ["why a", "cordon a", "submit --model a", "jobs --queue a", "runtime show zzz"]
)
def test_names_are_not_completed_where_nobody_answers_and_nothing_is_said(
    words: str, tmp_path: Path
) -> None:
    asked = {
        "_BERTH_COMPLETE": "bash_complete",
        "COMP_WORDS": f"berth {words}",
        "COMP_CWORD": str(len(words.split())),
        "BERTH_NATS_URL": "nats://127.0.0.1:1",
        "XDG_CONFIG_HOME": str(tmp_path),
    }
    done = CliRunner(env=asked).invoke(berth, prog_name="berth")
    assert done.output.strip() == ""
