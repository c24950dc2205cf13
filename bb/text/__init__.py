"""The text spelling of flows.

    @durable(retries: 3)
    flow onboarding(name: String)
      memo profile = crm.read(name)
      once "welcome"
        send_email(to: profile.mail, text: fmt("Welcome, {name}!"))

A source text is a module of flows; `parse` reads one, `format` writes what `parse` reads. A flow means the same in Python,
in text and in JSON. The parser is loaded when it is first used.
"""

from __future__ import annotations

from typing import Final

from bb.errors import InvalidInput
from bb.text.module import Module
from bb.text.writer import format

LIMIT: Final = 2**20


def parse(source: str, *, limit: int = LIMIT) -> Module:
    """The flows of a source text.

    Comments, goal lines and return types are dropped. `limit` is the most bytes of the text in UTF-8. It may have a quarter as
    many words and signs, or 1,000 if that is more: a text at the limit takes a few seconds.

    Raises:
        InvalidText: it is no module of flows; the error names line and column.
        InvalidInput: it is no text.
    """
    if not isinstance(source, str):
        raise InvalidInput(f"{type(source).__name__} is no source text", remedy="give text: path.read_text('utf-8')")
    from bb.text.reader import read

    return read(source, limit)


__all__ = ["Module", "format", "parse"]
