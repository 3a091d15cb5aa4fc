import asyncio

from aiohttp import web

from berthmaster.control.dashboard.core.board import Board, Scope
from berthmaster.control.dashboard.streaming import Streams
from tests.support.patience import hang_s

HEAD = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"


async def serve(streams: Streams) -> tuple[web.Server, asyncio.Server]:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        return await streams.serve(request, Scope(True), lambda: True)

    site = web.Server(answer)
    return site, await asyncio.get_running_loop().create_server(site, "127.0.0.1", 0)


def test_who_takes_nothing_is_let_go_while_others_are_told() -> None:
    asyncio.run(_deaf_and_awake())


async def _deaf_and_awake() -> None:
    board, stopping = Board("life"), asyncio.Event()
    streams = Streams(board, 2, lambda: 0.0, stopping, write_limit_s=1.0)
    site, server = await serve(streams)
    port = server.sockets[0].getsockname()[1]
    deaf, deafs = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    awake, awakes = await asyncio.open_connection("127.0.0.1", port, limit=2**23)
    for writer in (deafs, awakes):
        writer.write(HEAD)
    async with asyncio.timeout(hang_s()):
        while streams.viewers < 2:
            await asyncio.sleep(0)
        third, thirds = await asyncio.open_connection("127.0.0.1", port)
        thirds.write(HEAD)
        assert (await third.readline()).startswith(b"HTTP/1.1 503")
        thirds.close()
        # More at once than sockets hold, so that whoever does not read is soon full.
        for turn in range(8):
            board.put("fleet", f"{turn}" + "x" * 4_000_000)
            board.turn()
            streams.turned()
            await _heard(awake, b'"fleet":"%d' % turn)
        while not streams.let_go:
            await asyncio.sleep(0.01)
        board.put("last", "word")
        board.turn()
        streams.turned()
        await _heard(awake, b'"last":"word"')
        assert (streams.let_go, streams.viewers, streams.refused) == (1, 1, 1)
        awakes.close()
        deafs.close()
        stopping.set()
        streams.stop()
        server.close()
        await site.shutdown(1)
    del deaf


async def _heard(reader: asyncio.StreamReader, wanted: bytes) -> None:
    seen = b""
    while wanted not in seen:
        more = await reader.read(2**23)
        assert more, "it was let go"
        seen = seen[-64:] + more
