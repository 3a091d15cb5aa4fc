"""Text from outside as it may go to a terminal: what could steer one is shown as its escape. Pure.

Escaped is every character that Python does not call printable: controls (U+001B, U+009B), marks of
direction (U+202E), format characters, private and unassigned ones, separators other than a blank.
Names, reasons and errors come from anybody, and such a character forges or hides what is read.
"""

import json


def visible(text: str, keep: str = "\n") -> str:
    """The text with everything unprintable shown as its escape, but for what is in ``keep``."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else ascii(char)[1:-1] for char in text
    )


def visible_json(body: bytes) -> bytes:
    """JSON that reads as the same values, with everything unprintable as JSON's own escape."""
    if body.isascii() and b"\x7f" not in body:
        return body  # the encoder has escaped ASCII's controls
    text = body.decode()
    return (
        "".join(
            char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text
        )
        .replace("\x7f", "\\u007f")
        .encode()
    )
