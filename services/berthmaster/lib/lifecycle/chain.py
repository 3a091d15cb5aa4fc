"""A cell's chain of decisions, as one reader has followed it."""


class Chain:
    """Its newest link."""

    def __init__(self) -> None:
        self.number = 0
        self.sequence = 0
