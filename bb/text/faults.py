"""What is wrong with a source text, in the words of its writer."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches
from typing import Final

from bb.errors import InvalidText
from bb.flows.names import RESERVED

_WIDTH: Final = 100
"""How much of a long line is shown."""
_LONGEST: Final = 500
"""How much is said about it: a word of the source may be as long as the source."""

_NAMES: Final = {
    "_NL": "the end of the line",
    "_INDENT": "an indented block",
    "_DEDENT": "the end of the block",
    "$END": "the end of the text",
    "NAME": "a name",
    "VAR": "a name",
    "OP": "a call",
    "KEY": "name:",
    "STRING": "a quoted text",
    "NUMBER": "a number",
    "SPAN": "a length of time",
    "TYPE": "a type",
    "ATTRIBUTE": "a part of a value",
    "LSQB": "'['",
    "LBRACE": "'{'",
    "_RSQB": "']'",
    "_RBRACE": "'}'",
    "_LPAR": "'('",
    "_RPAR": "')'",
    "_ARROW": "'->'",
    "_ASSIGN": "'='",
    "_COLON": "':'",
    "_COMMA": "','",
    "OPTIONAL": "'?'",
    "DURABLE": "@durable",
    "EFFECT": "@effect",
    "JSON": "@json",
}
_SIGILS: Final = {"VAR": "$", "ATTRIBUTE": "."}
_OPERATORS: Final = frozenset(("OR", "AND", "EQUAL", "COMPARE", "SUM", "MINUS", "PRODUCT"))
_PARTS: Final = frozenset(("ATTRIBUTE", "LSQB", "OPTIONAL"))
_VALUE: Final = frozenset(
    ("NAME", "VAR", "OP", "STRING", "NUMBER", "TRUE", "FALSE", "NULL", "LSQB", "LBRACE", "_LPAR", "NOT", "MINUS")
) | {"PEEK", "FMT", "PARSE", "AI_SEGMENT"}
_STATEMENT: Final = frozenset(("RETURN", "WHEN", "EMIT"))
_CLAUSES: Final = frozenset(("ELSE", "CATCH", "FINALLY", "UNDO", "_DEDENT"))

_HINTS: Final = {
    "ELSE": "else stands right after the block of its when, as deep as that when",
    "CATCH": "catch stands right after the block of its try, as deep as that try",
    "FINALLY": "finally stands right after the block of its scope, as deep as that scope",
    "STEP": "a step stands in the block of a saga",
    "UNDO": "an undo stands right after the block of its step, as deep as that step",
    "BRANCH": "a branch stands in the block of a select, parallel, race or group",
    "FLOW": "a flow stands at the margin; inside another one it is named",
    "EFFECT": "@effect stands above a binding or a memo",
    "DURABLE": "@durable stands above a flow, a named or a branch",
    "_ASSIGN": "== compares, = names a value; a name that is a reserved word is written with $",
}
_ELSEWHERE: Final = {
    "if": "when",
    "for": "each",
    "while": "repeat",
    "print": "emit",
    "say": "emit",
    "all": "parallel",
    "one": "race",
}
"""What other languages, and the builder, call a statement."""
_FOREIGN: Final = {
    "let": "a name is bound as it stands: x = 1",
    "var": "a name is bound as it stands: x = 1",
    "set": "a name is bound as it stands: x = 1",
    "call": 'a call stands alone: charge(12, "now")',
    "elif": "nest a when in the block of the else",
    "not": "not is written !",
}
"""What other languages have, and how it is done here."""


def fault(source: str, message: str, line: int, column: int, remedy: str = "") -> InvalidText:
    """The error at a place of a source; `line` and `column` count from 1."""
    lines = source.split("\n", line)
    text = lines[line - 1] if line <= len(lines) else ""
    left = max(0, min(column - 1 - _WIDTH // 2, len(text) - _WIDTH))
    part = text[left : left + _WIDTH].replace("\t", " ")
    shown = f"  {part}\n  {' ' * (column - 1 - left)}^"
    return InvalidText(_cut(message), line=line, column=column, shown=shown, remedy=_cut(remedy))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def unexpected(kind: str, text: str, expected: Collection[str], still: str, after: str = "") -> tuple[str, str]:
    """The message and the advice for a token that may not stand where it does.

    `still` says which bracket is open, `after` is what stands before it in its line.
    """
    wanted = _wanted(set(expected))
    match kind:
        case "_INDENT":
            return "this line is deeper than the one above it, which opens no block", "give both lines one margin"
        case "_NL" | "_DEDENT" | "$END" | "STRING":
            what = _NAMES[kind]
        case _:
            what = repr(f"{_SIGILS.get(kind, '')}{text}")
    message = f"expected {wanted}, not {what}" if wanted else f"{what} cannot stand here"
    return message, _hint(kind, text, expected) or still or _misspelt(after.strip(), expected)


def _hint(kind: str, text: str, expected: Collection[str]) -> str:
    if kind in _HINTS and kind not in expected:
        return _HINTS[kind]
    if kind == "_LPAR" and "OP" not in expected:
        return "an op and its ( have no space between them"
    if text in RESERVED and "NAME" in expected:
        quoted = ', or "..." if it is the name of a flow or an agent' if "STRING" in expected else ""
        return f"{text} is a reserved word: as a name it is ${text}{quoted}"
    if kind == "NAME" and "_RBRACE" in expected:
        return f'the keys of a record are quoted: "{text}"'
    if kind == "SPAN":
        return "a length of time stands only where one is asked for"
    return ""


def _misspelt(word: str, expected: Collection[str]) -> str:
    """Which statement a line was meant to be that begins with a name and goes on like none."""
    if "_ASSIGN" not in expected or len(word) > _WIDTH or not word.isidentifier():
        return ""
    if word in _FOREIGN:
        return _FOREIGN[word]
    meant = _ELSEWHERE.get(word) or next(iter(get_close_matches(word, RESERVED, 1)), "")
    return f"no statement begins with {word}; perhaps {meant} is meant" if meant else ""


def _wanted(expected: set[str]) -> str:
    """What may stand at a place, in a few words."""
    words: list[str] = []
    if expected >= _STATEMENT:
        words, expected = ["a statement"], expected & _CLAUSES
    elif expected >= _VALUE:
        words, expected = ["a value"], expected - _VALUE
    elif expected >= _OPERATORS:
        words, expected = ["an operator"], expected - _OPERATORS - _PARTS
    words += sorted({_NAMES.get(kind, f"'{kind.lower()}'") for kind in expected})
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
