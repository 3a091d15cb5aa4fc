"""What JetStream answers is no message that services believe without a stream."""

from typing import Any

import msgspec
import pytest

from berthmaster.lib.messages.families import (
    HELD_PAGES,
    JOB_FIGURES,
    LOG_CHUNKS,
    NUDGES,
    QUALITY,
    TELEMETRY,
    UNREADABLE,
)

READERS: dict[str, msgspec.json.Decoder[Any]] = {
    "figures": JOB_FIGURES,
    "held": HELD_PAGES,
    "inquiry": NUDGES,
    "logs": LOG_CHUNKS,
    "quality": QUALITY,
    "telemetry": TELEMETRY,
}
API = "io.nats.jetstream.api.v1"
ANSWERS = (
    {"type": f"{API}.stream_info_response", "config": {"name": "FLEET"}, "state": {"messages": 1}},
    {"type": f"{API}.stream_msg_get_response", "message": {"seq": 1, "data": "e30="}},
    {"type": f"{API}.stream_purge_response", "success": True, "purged": 0},
    {"type": f"{API}.stream_msg_delete_response", "success": True},
    {"type": f"{API}.stream_info_response", "error": {"code": 404, "err_code": 10059}},
    {"stream": "WORKLOADS", "seq": 7},
    {"stream": "FLEET", "seq": 7, "duplicate": True, "domain": "hub"},
)


@pytest.mark.parametrize("family", READERS)
def test_answer_of_jetstream_is_no_observation(family: str) -> None:
    for answer in ANSWERS:
        with pytest.raises(UNREADABLE):
            READERS[family].decode(msgspec.json.encode(answer))
