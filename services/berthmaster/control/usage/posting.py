"""One POST to a webhook: one name resolution, a check of the address, no redirection followed."""

import asyncio
import re
import socket
import ssl
from collections.abc import Mapping
from typing import Final

from berthmaster.control.usage.core.addresses import fault
from berthmaster.control.usage.webhooks import address_of
from berthmaster.lib.runtime.webhook import RETRIED

LIMIT_S: Final = 10.0
_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})[ \r\n]")


class NotTaken(Exception):
    """The webhook did not take the notice. ``may_help``: another try may succeed. The text has no
    URL.
    """

    def __init__(self, why: str, *, may_help: bool) -> None:
        super().__init__(why)
        self.may_help = may_help


async def post(url: str, body: bytes, headers: Mapping[str, str], *, may_be_private: bool) -> None:
    """Send once, within LIMIT_S. Raises NotTaken."""
    try:
        async with asyncio.timeout(LIMIT_S):
            status = await _status(url, body, headers, may_be_private)
    except TimeoutError:
        raise NotTaken(f"no answer within {LIMIT_S:.0f} s", may_help=True) from None
    except ssl.SSLError as error:
        raise NotTaken(f"TLS: {error.reason}", may_help=True) from error
    except UnicodeError:  # of a name that no name server accepts
        raise NotTaken("its host is no name", may_help=False) from None
    except OSError as error:
        raise NotTaken(error.strerror or type(error).__name__, may_help=True) from error
    if not 200 <= status < 300:
        raise NotTaken(f"it answers {status}", may_help=status in RETRIED)


async def _status(url: str, body: bytes, headers: Mapping[str, str], may_be_private: bool) -> int:
    parts, host, port = address_of(url)
    in_plain_text = parts.scheme == "http"
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(one[4][0]) for one in found]
    if why := fault(addresses, may_be_private=may_be_private, in_plain_text=in_plain_text):
        raise NotTaken(why, may_help=False)
    tls = None if in_plain_text else ssl.create_default_context()
    reader, writer = await asyncio.open_connection(
        addresses[0], port, ssl=tls, server_hostname=None if tls is None else host
    )
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        lines = [f"POST {target} HTTP/1.1", f"Host: {parts.netloc}", "Connection: close"]
        lines += [f"Content-Length: {len(body)}", *(f"{k}: {v}" for k, v in headers.items())]
        writer.write("\r\n".join([*lines, "", ""]).encode("ascii") + body)
        await writer.drain()
        answer = await reader.readuntil(b"\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        answer = b""
    finally:
        writer.transport.abort()  # the rest of the answer is not read
    if (status := _STATUS.match(answer)) is None:
        raise NotTaken("its answer is not HTTP", may_help=True)
    return int(status[1])
