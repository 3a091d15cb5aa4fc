"""Prices of a GPU-hour by model: a file that an operator writes. Pure.

::

    {"currency": "EUR", "gpu_hour": {"H100": 2.9, "A100-80GB": 1.6}, "other": 0.5}

Models have the names that nodes report. ``other`` is the price of all other models. Without
``other`` a report shows the hours of models without a price.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

MAX_BYTES = 1024 * 1024
Price = Annotated[float, Meta(ge=0, le=1_000_000)]


class PricesError(ValueError):
    """The file is invalid. The text names the field and a valid value."""


class Prices(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    currency: Annotated[str, Meta(min_length=1, max_length=16)]
    gpu_hour: Annotated[dict[Annotated[str, Meta(max_length=316)], Price], Meta(max_length=4096)]
    other: Price | None = None  # of models without an entry, None: no price

    def of(self, model: str) -> float | None:
        """Return the price of one GPU-hour, or None if not set."""
        return self.gpu_hour.get(model, self.other)


def parse_prices(text: bytes) -> Prices:
    """Return the parsed file. Raises PricesError."""
    if len(text) > MAX_BYTES:
        raise PricesError(f"{len(text)} bytes, at most {MAX_BYTES}")
    try:
        return msgspec.json.decode(text, type=Prices)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        words = str(error).replace("`$", "`").replace("`.", "`")
        raise PricesError(
            f'{words}; right is {{"currency": "EUR", "gpu_hour": {{"<model>": <price>}}}}'
        ) from None
