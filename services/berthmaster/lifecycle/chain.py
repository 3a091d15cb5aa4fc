"""A cell's chain of decisions, as one reader has followed it."""


class Chain:
    """Its newest link."""

    def __init__(self) -> None:
        self.number = 0
        self.sequence = 0

    def passed(self, sequence: int) -> None:
        """A link that cannot be read: it has a number like every one."""
        if sequence > self.sequence:
            self.number += 1
            self.sequence = sequence
