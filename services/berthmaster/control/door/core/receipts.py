"""Receipts of placements, signed by the door, to rebuild a lost log.

Example: attempt 2 of acme/train runs on red, and the log is lost. `berth recover` asks the executor
of red for its attempts. The executor returns the receipt kept with the job object. The receipt
proves acme/train, the job's request, red and attempt 2. The door checks the signature, and
publishes the proven attempt. An executor also returns a receipt when the door does not know the
attempt.

Only the door can make receipts: the key is derived from the seed in the door's credentials. All
replicas of the door have that seed, and no agent has it. The format is opaque to executors: base64
of the content, a dot, base64 of the keyed digest.
"""

import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable
from typing import Final

import msgspec

from berthmaster.lib.messages.api import RecordedEvent
from berthmaster.lib.messages.door import HeldAttempt, PlacementReceipt, ProvenAttempt
from berthmaster.lib.messages.families import UNREADABLE
from berthmaster.lib.messages.workload import Carried, Ending, Evicted, Withdrawn

MAC_BYTES: Final = 16
_PERSON: Final = b"berth-receipt.v1"
_OPEN_BUS: Final = b"a bus without users, on which anybody may store anything"


_RECEIPTS: Final = msgspec.json.Decoder(PlacementReceipt)
_ENCODER: Final = msgspec.json.Encoder()


def key_of(seed: str) -> bytes:
    """Return the key of a door that connects with this seed. "" means no seed."""
    secret = seed.encode() or _OPEN_BUS
    return hashlib.blake2b(secret, digest_size=32, person=_PERSON).digest()


def tells_of_end(held: PlacementReceipt, history: Iterable[RecordedEvent]) -> bool:
    """Return whether the history shows the end of the attempt.

    Proofs are an ending stored after the placement, an eviction or withdrawal of the attempt, and a
    later attempt.
    """
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
    """Signs receipts, and checks returned ones."""

    def __init__(self, key: bytes = b"") -> None:
        self._key = key
        self.log = ""  # log name in new receipts, see PlacementReceipt

    def signed(self, receipt: PlacementReceipt) -> str:
        now = msgspec.structs.replace(receipt, log=self.log)
        content = _text(_ENCODER.encode(now))
        return f"{content}.{self._mac(content)}"

    def opened(self, text: str) -> PlacementReceipt | None:
        """Return the signed content, or None if the signature is not ours."""
        content, _, mac = text.partition(".")
        if not text.isascii() or not hmac.compare_digest(mac, self._mac(content)):
            return None
        try:
            return _RECEIPTS.decode(urlsafe_b64decode(content))
        except (ValueError, *UNREADABLE):  # of a future version
            return None

    def proven(self, cluster: str, held: HeldAttempt) -> ProvenAttempt:
        """Return a reported attempt, with its receipt if the receipt names this attempt."""
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
            pods=held.pods,
        )

    def _mac(self, content: str) -> str:
        digest = hashlib.blake2b(
            content.encode(), key=self._key, digest_size=MAC_BYTES, person=_PERSON
        )
        return _text(digest.digest())


def _text(raw: bytes) -> str:
    return urlsafe_b64encode(raw).decode("ascii")
