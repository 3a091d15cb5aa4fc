"""Lists with commas between their members, as flags and variables have them. Pure."""


class EmptyMember(ValueError):
    """A list with an empty member; ``index`` counts from 0."""

    def __init__(self, index: int) -> None:
        super().__init__(f"member [{index}] is empty")
        self.index = index


def members(text: str) -> tuple[str, ...]:
    """Split a list at its commas and trim each member. A blank text is the empty list. Raises
    EmptyMember: ``gpu,`` and ``a,,b`` are slips, and an empty name may stand for every name."""
    if not text.strip():
        return ()
    parts = tuple(part.strip() for part in text.split(","))
    if "" in parts:
        raise EmptyMember(parts.index(""))
    return parts
