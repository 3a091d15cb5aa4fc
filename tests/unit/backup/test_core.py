"""The bytes of a backup: what is written is read again, and what is broken is told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berthmaster.backup.core import (
    FRAME_BYTES,
    OPENING,
    BrokenBackup,
    Record,
    checksums,
    frames,
    nanoseconds,
    records,
    stream_bytes,
    written,
)

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


def test_checksums_are_crc_32c() -> None:
    assert checksums([b"123456789", b"", b"a", b"987654321"]) == [
        0xE3069283,
        0,
        0xC1D04330,
        checksums([b"987654321"])[0],
    ]


def test_frames_hold_all_bytes_in_their_order() -> None:
    raw = bytes(range(256)) * (FRAME_BYTES // 100)
    held = b""
    for frame in frames(raw):
        assert frame[0] == 1
        assert int.from_bytes(frame[1:4], "little") == len(frame) - 4
        held += frame[8:]
    assert held == raw


def test_a_stream_opens_with_its_state_and_ends_with_an_empty_record() -> None:
    kept = [Record("s", number, 5, b"x" * 50_000) for number in range(1, 12)]
    parts = list(stream_bytes(b'{"messages":1}', 7, (written(record) for record in kept)))
    assert parts[0] == OPENING
    raw = b"".join(frame[8:] for frame in parts[1:])
    assert raw.startswith(b"NATSARC1")
    assert raw.endswith(bytes(5))
    state, *found = records(raw[8:-5])
    assert state == Record("state.json", 0, 7, b'{"messages":1}')
    assert found == kept


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_record_that_is_cut_off_is_told(cut: int) -> None:
    raw = written(Record("subject", 12, 34, b"data"))
    with pytest.raises(BrokenBackup, match="cut off"):
        list(records(raw[:-cut]))


def test_records_refuses_a_number_without_an_end() -> None:
    with pytest.raises(BrokenBackup, match="more than 64 bits"):
        list(records(b"\xff" * 1_000_000))
