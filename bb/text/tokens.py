"""Source text to tokens: words, and the layout that opens and closes blocks. What is too long or too deep ends here."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Final, NoReturn

from attrs import field, mutable
from lark import Token

from bb.errors import InvalidText
from bb.flows.names import RESERVED
from bb.text.faults import fault
from bb.text.spelling import DEPTH

_TOKEN: Final = re.compile(
    r"""
    (?P<SPACE>[ ]+)
  | (?P<COMMENT>\#[^\n]*)
  | (?P<LINE>\n)
  | (?P<TYPE>(?:List<){1,32}[A-Za-z_]\w*>{1,32})
  | (?P<WORD>[A-Za-z_]\w*)
  | (?P<VAR>\$[A-Za-z_]\w*)
  | (?P<SPAN>\d[\d_]*(?:ms|[smhd])\b)
  | (?P<NUMBER>\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?(?!\w))
  | (?P<RAW>\"{3})
  | (?P<STRING>"[^"\\\n]*(?:\\[^\n][^"\\\n]*)*")
  | (?P<MARK>@[a-z]+)
  | (?P<ATTRIBUTE>\.[A-Za-z_]\w*)
  | (?P<SIGN>->|\|\||&&|==|!=|<=|>=|[<>+\-*/!?=:,()\[\]{}])
    """,
    re.VERBOSE | re.ASCII,
)
_OP: Final = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*(?=\()", re.ASCII)
_KEY: Final = re.compile(r"[A-Za-z_]\w*[ ]*:", re.ASCII)
_MARGIN: Final = re.compile(r"(?:[ \t]*(?:\#[^\n]*)?(?:\n|\Z))*(?P<margin>[ ]*)")
_GOAL: Final = re.compile(r'goal[ ]*"')
_NEGATIVE: Final = re.compile(r"-(?P<number>\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)(?!\w)", re.ASCII)

_SIGNS: Final = {
    "->": "_ARROW",
    "||": "OR",
    "&&": "AND",
    "==": "EQUAL",
    "!=": "EQUAL",
    "<": "COMPARE",
    "<=": "COMPARE",
    ">": "COMPARE",
    ">=": "COMPARE",
    "+": "SUM",
    "-": "MINUS",
    "*": "PRODUCT",
    "/": "PRODUCT",
    "!": "NOT",
    "?": "OPTIONAL",
    "=": "_ASSIGN",
    ":": "_COLON",
    ",": "_COMMA",
    "(": "_LPAR",
    ")": "_RPAR",
    "[": "LSQB",
    "]": "_RSQB",
    "{": "LBRACE",
    "}": "_RBRACE",
}
_MARKS: Final = {"@durable": "DURABLE", "@effect": "EFFECT", "@json": "JSON"}
_ENDS: Final = frozenset(
    ("NAME", "VAR", "NUMBER", "STRING", "TRUE", "FALSE", "NULL", "OPTIONAL", "ATTRIBUTE", "_RPAR", "_RSQB", "_RBRACE")
)
"""What a value may end with: a minus after it is a difference, not a sign."""


@mutable
class Tokens:
    """The tokens of one source, at most `most`, made as they are asked for; `brackets` are those still open at the last one."""

    source: str
    most: int
    brackets: list[Token] = field(factory=list, init=False)
    _at: int = field(default=0, init=False)
    _line: int = field(default=1, init=False)
    _start: int = field(default=0, init=False)
    """Where the current line starts."""
    _margins: list[int] = field(factory=lambda: [0], init=False)
    _last: str = field(default="_NL", init=False)
    _made: int = field(default=0, init=False)

    @property
    def place(self) -> tuple[int, int]:
        """Line and column of what comes next, from 1."""
        return self._line, self._at - self._start + 1

    def __iter__(self) -> Iterator[Token]:
        """Raises:
        InvalidText: something is no token, or nested too deeply.
        """
        source, match, size = self.source, _TOKEN.match, len(self.source)
        yield from self._layout()
        while self._at < size:
            found = match(source, self._at)
            if found is None:
                self._refuse()
            kind, text = found.lastgroup or "", found[0]
            if kind in {"SPACE", "COMMENT"}:
                self._at = found.end()
            elif kind == "LINE":
                self._at = found.end()
                if not self.brackets and self._last != "_NL":
                    yield self._token("_NL", "", found.start(), found.end())
                self._line += 1
                self._start = found.end()
                if not self.brackets:
                    yield from self._layout()
            else:
                yield self._one(kind, text)
        if self.brackets:
            opener = self.brackets[-1]
            raise fault(source, f"this {opener} is never closed", opener.line or 0, opener.column or 0)
        if self._last != "_NL":
            yield self._token("_NL", "", size, size)
        for _ in self._margins[1:]:
            yield self._token("_DEDENT", "", size, size)

    def _one(self, kind: str, text: str) -> Token:
        """The token at the current position."""
        at = self._at
        end = at + len(text)
        match kind:
            case "WORD":
                return self._word(text, at)
            case "VAR":
                return self._token("VAR", text[1:], at, end)
            case "ATTRIBUTE":
                return self._token("ATTRIBUTE", text[1:], at, end)
            case "RAW":
                return self._raw(at)
            case "STRING":
                return self._token("STRING", self._string(text), at, end)
            case "SIGN":
                return self._sign(text, at)
            case "MARK" if text not in _MARKS:
                raise self._fault(f"{text} is unknown", at, "there are @durable, @effect and @json")
            case "MARK":
                return self._token(_MARKS[text], text, at, end)
            case _:
                return self._token(kind, text, at, end)

    def _word(self, text: str, at: int) -> Token:
        if self._last in ("_COMMA", "_LPAR") and (key := _KEY.match(self.source, at)):
            return self._token("KEY", text, at, key.end())
        op = _OP.match(self.source, at)
        if op and text not in RESERVED:
            return self._token("OP", op[0], at, op.end())
        end = at + len(text)
        if text in RESERVED:
            return self._token(text.upper(), text, at, end)
        if text == "goal" and self._last == "_INDENT" and _GOAL.match(self.source, at):
            return self._token("GOAL", text, at, end)
        return self._token("NAME", text, at, end)

    def _sign(self, text: str, at: int) -> Token:
        if text == "-" and self._last not in _ENDS and (number := _NEGATIVE.match(self.source, at)):
            return self._token("NUMBER", number[0], at, number.end())
        token = self._token(_SIGNS[text], text, at, at + len(text))
        if text in "([{":
            self.brackets.append(token)
            self._deep(at)
        elif text in ")]}" and self.brackets:
            self.brackets.pop()
        return token

    def _string(self, text: str) -> str:
        try:
            value: str = json.loads(text)
        except ValueError as error:
            where = self._at + min(getattr(error, "pos", 0), len(text) - 1)
            hint = 'escapes are those of JSON: \\" \\\\ \\n \\t \\u0041; """...""" takes everything as it stands'
            raise self._fault("this is no text: a wrong escape, or a control character", where, hint) from None
        return value

    def _raw(self, at: int) -> Token:
        end = self.source.find('"""', at + 3)
        if end < 0:
            raise self._fault('this """ is never closed', at)
        text = self.source[at + 3 : end]
        token = self._token("STRING", text, at, end + 3)
        if "\n" in text:
            self._line += text.count("\n")
            self._start = at + 3 + text.rindex("\n") + 1
        return token

    def _layout(self) -> Iterator[Token]:
        """What the margin of the next line with something on it opens and closes."""
        found = _MARGIN.match(self.source, self._at)
        assert found is not None  # it matches nothing as well
        begin, end = found.span("margin")
        if begin > self._at:
            self._line += self.source.count("\n", self._at, begin)
            self._start = begin
        self._at = end
        if self.source.startswith("\t", end):
            raise self._fault("a tab in the margin", end, "indent by spaces")
        if end == len(self.source):
            return
        width, margins = end - begin, self._margins
        if width > margins[-1]:
            margins.append(width)
            self._deep(end)
            yield self._token("_INDENT", "", end, end)
        while width < margins[-1]:
            margins.pop()
            if width > margins[-1]:
                raise self._fault(
                    "this line stands at no depth that is open",
                    end,
                    f"the margins open here are {', '.join(map(str, margins))} spaces wide",
                )
            yield self._token("_DEDENT", "", end, end)

    def _token(self, kind: str, text: str, at: int, end: int) -> Token:
        self._at, self._last = end, kind
        self._made += 1
        if self._made > self.most:
            raise self._fault(
                f"the text has more than {self.most:,} words and signs", at, "split it, or give a higher limit="
            )
        return Token(kind, text, at, self._line, at - self._start + 1)

    def _deep(self, at: int) -> None:
        if len(self._margins) - 1 + len(self.brackets) > DEPTH:
            raise self._fault(f"nested more than {DEPTH} deep", at, "name a part and use the name, or run it as a flow")

    def _fault(self, message: str, at: int, remedy: str = "") -> InvalidText:
        return fault(self.source, message, self._line, at - self._start + 1, remedy)

    def _refuse(self) -> NoReturn:
        """Say why there is no token here."""
        rest = self.source[self._at : self._at + 80]
        match rest[0]:
            case '"':
                raise self._fault(
                    "this text does not end on its line", self._at, 'close it, or use """...""" for several lines'
                )
            case "\t":
                raise self._fault("a tab", self._at, "use spaces")
            case "'":
                raise self._fault("texts stand in double quotes", self._at)
            case digit if digit.isdecimal() and digit.isascii():
                raise self._fault("this is no number and no length of time", self._at, "write 3, 0.5, 500ms, 5s or 2m")
            case other:
                hint = {"|": "or is ||", "&": "and is &&", "%": "there is no remainder"}.get(other, "")
                raise self._fault(f"{other!r} means nothing here", self._at, hint)
