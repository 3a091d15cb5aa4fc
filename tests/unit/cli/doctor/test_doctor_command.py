"""The command line of `berth doctor`, as far as it is refused before anything is read."""

import pytest
from click.testing import CliRunner

from berthmaster.cli.doctor.commands import doctor


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("berlin", "--without 'berlin' is not WORKER:NAMESPACE/QUEUE, such as berlin:ml/main"),
        ("rome:ml/main", "--without rome:ml/main: there is no --worker of that name; named are: w"),
    ],
)
def test_a_queue_that_is_left_out_is_one_of_a_worker_that_is_named(text: str, words: str) -> None:
    done = CliRunner().invoke(doctor, ["--worker", "w=context-w", "--without", text])
    assert done.exit_code == 2
    assert words in done.output
