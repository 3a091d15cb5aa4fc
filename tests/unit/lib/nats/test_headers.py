"""Headers of messages: as the library reads them, in less time."""

from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client

from berthmaster.lib.nats.requests import PatientClient

PIECES = st.sampled_from(
    [
        b"Nats-Batch-Id",
        b"Status",
        b":",
        b": ",
        b" ",
        b"\t",
        b"\r\n",
        b"\n",
        b"12",
        b"\xc3\xa4",
        b"\xff",
    ]
)


@given(st.lists(PIECES, max_size=24).map(b"".join))
def test_headers_are_read_as_the_library_reads_them(raw: bytes) -> None:
    theirs = Client._parse_header_lines(raw)
    theirs.pop("", None)  # a name of no letter is none to us
    assert PatientClient._parse_header_lines(raw) == theirs


def test_a_header_block_of_ours() -> None:
    raw = b"Nats-Expected-Last-Subject-Sequence: 7\r\nA: b:c\r\nno colon\r\ntwo words: x\r\n\r\n"
    expected = {"Nats-Expected-Last-Subject-Sequence": "7", "A": "b:c"}
    assert PatientClient._parse_header_lines(raw) == expected
