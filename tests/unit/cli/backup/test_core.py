"""The bytes of a backup: what is written is read again, and what is broken is told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berthmaster.cli.backup.core import BrokenBackup, Record, nanoseconds, records, written

RECORDS = st.builds(
    Record,
    st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=200),
    st.integers(0, 2**62),
    st.integers(-(2**62), 2**62),
    st.binary(max_size=300),
)


@given(st.lists(RECORDS, max_size=5))
def test_records_are_read_as_they_were_written(kept: list[Record]) -> None:
    raw = b"".join(written(record) for record in kept)
    assert list(records(raw)) == kept


def test_the_server_s_own_bytes_are_these() -> None:
    # The first record of a stream that nats-server 2.15.1 has written.
    record = Record("w.0.0", 1, 1795435000000000000, b"{}")
    assert written(record)[:1] == b"\x05"
    assert written(record).endswith(b"\x01\x00\x02w.0.0{}")


@given(st.integers(10**18, 2 * 10**18))
def test_a_time_reads_as_the_same_seconds_again(stored_ns: int) -> None:
    seconds = stored_ns / 10**9
    assert nanoseconds(seconds) / 10**9 == seconds


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_record_that_is_cut_off_is_told(cut: int) -> None:
    raw = written(Record("subject", 12, 34, b"data"))
    with pytest.raises(BrokenBackup, match="cut off"):
        list(records(raw[:-cut]))


def test_records_refuses_a_number_without_an_end() -> None:
    with pytest.raises(BrokenBackup, match="more than 64 bits"):
        list(records(b"\xff" * 1_000_000))
