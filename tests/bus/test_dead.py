from berthmaster.lib.messages.families import DEAD_LETTERS
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.dead_letters import MAX_BODY_BYTES, MAX_REASON_CHARS, store_dead_letter
from berthmaster.lib.nats.stream_reads import last_message
from berthmaster.lib.nats.streams import DEAD
from berthmaster.lib.supervisor.embedded import Server
from tests.bus.tools import connected, story

TOKEN = "eyJ" + "h" * 40 + "." + "p" * 40 + "." + "s" * 40


@story
async def test_a_dead_letter_is_cut_and_shows_no_secret_nor_a_part_of_one(server: Server) -> None:
    async with connected(server.url, replicas=1) as conn:
        kept = await store_dead_letter(
            conn,
            service="tester",
            subject="berth.api.acme.submit",
            reason="r" * (MAX_REASON_CHARS - 20) + f" {TOKEN} " + "r" * 5000,
            body=b"\xff" * (MAX_BODY_BYTES - 20) + b" " + TOKEN.encode() + b"\xff" * 5000,
            workload="acme/train",
        )
        assert kept
        message = await last_message(conn, DEAD, subjects.dead("tester"))
        assert message is not None
        letter = DEAD_LETTERS.decode(message.data)
        assert letter.reason.startswith("r" * (MAX_REASON_CHARS - 20) + " <hidden> ")
        assert len(letter.reason) < MAX_REASON_CHARS + 40
        assert letter.body == b"\xff" * (MAX_BODY_BYTES - 20) + b" <hidden>" + b"\xff" * 11
        assert letter.workload == "acme/train"
