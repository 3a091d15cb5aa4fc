"""What the door signs of a placement, so that a lost log can be built again.

An executor keeps the receipt with the job object, and hands it back when the door does not know
what it holds, or `berth recover` asks. The door then knows what it had read in the log: which
request of which tenant was placed in which cluster, as which attempt. Nobody else can make one,
since the key follows from the seed in the door's own credentials, which all its replicas share
and no agent has. It is opaque to whoever keeps it: base64 of the content, a dot, base64 of its
keyed digest.
"""

import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable
from typing import Final

import msgspec

from berthmaster.messages.api import RecordedEvent
from berthmaster.messages.door import HeldAttempt, PlacementReceipt, ProvenAttempt
from berthmaster.messages.families import UNREADABLE
from berthmaster.messages.workload import Carried, Ending, Evicted, Withdrawn

MAC_BYTES: Final = 16
_PERSON: Final = b"berth-receipt.v1"
_OPEN_BUS: Final = b"a bus without users, on which anybody may store anything"


_RECEIPTS: Final = msgspec.json.Decoder(PlacementReceipt)
_ENCODER: Final = msgspec.json.Encoder()


def key_of(seed: str) -> bytes:
    """The key of the door that connects with this seed; "" = with none."""
    secret = seed.encode() or _OPEN_BUS
    return hashlib.blake2b(secret, digest_size=32, person=_PERSON).digest()


def tells_of_end(held: PlacementReceipt, history: Iterable[RecordedEvent]) -> bool:
    """Whether any of these events says that the attempt is over, or was never this one's: an ending
    that was stored since, its eviction or withdrawal, or a later attempt."""
    for one in history:
        event = one.event
        if one.void:
            continue
        if isinstance(event, Ending) and one.stored_at_s >= held.placed_at_s:
            return True
        attempt = getattr(event, "attempt", 0)
        if attempt > held.attempt:
            return True
        if attempt == held.attempt and isinstance(event, Evicted | Withdrawn):
            return True
        if isinstance(event, Carried) and event.workload.attempt >= held.attempt:
            return True
    return False


class Receipts:
    """Signs and checks."""

    def __init__(self, key: bytes = b"") -> None:
        self._key = key
        self.log = ""  # what new ones say, see PlacementReceipt

    def signed(self, receipt: PlacementReceipt) -> str:
        now = msgspec.structs.replace(receipt, log=self.log)
        content = _text(_ENCODER.encode(now))
        return f"{content}.{self._mac(content)}"

    def opened(self, text: str) -> PlacementReceipt | None:
        """What was signed; None: this is no receipt of ours."""
        content, _, mac = text.partition(".")
        if not text.isascii() or not hmac.compare_digest(mac, self._mac(content)):
            return None
        try:
            return _RECEIPTS.decode(urlsafe_b64decode(content))
        except (ValueError, *UNREADABLE):  # of a version to come
            return None

    def proven(self, cluster: str, held: HeldAttempt) -> ProvenAttempt:
        """What a cluster says that it holds, with its receipt if that is of this very attempt."""
        receipt = self.opened(held.receipt) if held.receipt else None
        named = (cluster, held.tenant, held.id, held.attempt)
        if receipt is not None:
            of = (receipt.cluster, receipt.tenant, receipt.id, receipt.attempt)
            receipt = receipt if of == named else None
        return ProvenAttempt(
            tenant=held.tenant,
            id=held.id,
            attempt=held.attempt,
            receipt=receipt,
            executor=held.executor,
        )

    def _mac(self, content: str) -> str:
        digest = hashlib.blake2b(
            content.encode(), key=self._key, digest_size=MAC_BYTES, person=_PERSON
        )
        return _text(digest.digest())


def _text(raw: bytes) -> str:
    return urlsafe_b64encode(raw).decode("ascii")
