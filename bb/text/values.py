"""What the grammar's rules for values come to: expressions and calls, and the settings of statements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from math import isinf
from typing import Any, Final, NamedTuple, TypeVar, cast

from lark import Token, Transformer, v_args

from bb.errors import BBError, InvalidWire
from bb.flows.expressions import PARSE_AS, Expr, Field, Format, List_, Lit, Obj, Operator, Parse, ParseAs, Var
from bb.flows.tree import AiSegment, Call, Peek
from bb.text.spelling import BINDS, DEPTH

T = TypeVar("T")

_UNITS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class Misread(Exception):
    """What stands at a token cannot be; the reader makes an `InvalidText` of it."""

    def __init__(self, message: str, at: Token, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.at = at
        self.remedy = remedy


class Part(NamedTuple):
    """What a rule came to, where it begins, and how deep it is. Plain data becomes a literal only where it is used."""

    value: Any
    at: Token
    height: int = 1
    plain: bool = False


class Setting(NamedTuple):
    """A named argument."""

    key: Token
    part: Part


def made(at: Token, height: int, kind: Callable[..., object], /, *args: object, **fields: object) -> Part:
    """A value or flow of a kind, which may refuse what it is given.

    Raises:
        Misread: it does, or is nested too deeply.
    """
    if height > DEPTH:
        raise Misread(f"nested more than {DEPTH} deep", at, "name a part and use the name")
    try:
        return Part(kind(*args, **fields), at, height)
    except InvalidWire:
        raise
    except BBError as error:
        raise Misread(error.message, at, error.remedy) from None


def given(part: Part) -> Any:
    """The value of a part, as a value of the tree."""
    return Lit(part.value) if part.plain else part.value


def highest(parts: Iterable[Part]) -> int:
    """The depth of what holds these."""
    return 1 + max((part.height for part in parts), default=0)


# --- what a setting may be ---


def a_value(part: Part) -> Any:
    """Any value."""
    return given(part)


def a_span(part: Part) -> timedelta:
    """A length of time; a bare number is milliseconds."""
    if isinstance(part.value, timedelta):
        return part.value
    return timedelta(milliseconds=_only(part, int, "a length of time", "write 500ms, 5s, 2m, 24h or 7d"))


def a_count(part: Part) -> int:
    """A whole number."""
    return _only(part, int, "a whole number")


def a_flag(part: Part) -> bool:
    """True or false."""
    return _only(part, bool, "true or false")


def a_text(part: Part) -> str:
    """A quoted text."""
    return _only(part, str, "a quoted text")


def a_word(part: Part) -> str:
    """A bare word."""
    if isinstance(part.value, Var):
        return part.value.name
    raise Misread("expected a word without quotes", part.at)


def texts(part: Part) -> list[str]:
    """A list of quoted texts."""
    items = part.value if part.plain and isinstance(part.value, list) else [None]
    if any(type(item) is not str for item in items):
        raise Misread("expected a list of quoted texts", part.at, 'write ["calendar.read", "mail.send"]')
    return cast("list[str]", items)


def _only(part: Part, kind: type[T], what: str, remedy: str = "") -> T:
    if part.plain and type(part.value) is kind:
        return part.value
    raise Misread(f"expected {what}", part.at, remedy)


def settle(
    head: Token, settings: Iterable[Setting], known: Mapping[str, Callable[[Part], object]], *needed: str
) -> dict[str, Any]:
    """Named arguments by name, each read as it should be.

    Raises:
        Misread: one is unknown, given twice, missing or of another kind.
    """
    found: dict[str, Any] = {}
    for key, part in settings:
        if key.value not in known:
            raise Misread(f"{head} takes no {key}:", key, f"it takes {', '.join(f'{name}:' for name in known)}")
        if key.value in found:
            raise Misread(f"{key}: is given twice", key)
        found[key.value] = known[key.value](part)
    for name in needed:
        if name not in found:
            raise Misread(f"{head} needs {name}:", head)
    return found


def span(token: Token) -> Part:
    """A length of time as it is written: digits and a unit.

    Raises:
        Misread: it is longer than a timedelta can be.
    """
    digits = token.value.rstrip("mshd")
    try:
        return Part(timedelta(milliseconds=int(digits.replace("_", "")) * _UNITS[token.value[len(digits) :]]), token)
    except (OverflowError, ValueError):
        raise Misread("this time is too long", token) from None


@v_args(inline=True)
class Values(Transformer[Token, Any]):
    """Rules for values."""

    # --- primary ---

    def text(self, token: Token) -> Part:
        return Part(token.value, token, plain=True)

    def number(self, token: Token) -> Part:
        digits = token.value.replace("_", "")
        try:
            value = int(digits) if digits.lstrip("-").isdigit() else float(digits)
        except ValueError:  # Python's limit on digits
            raise Misread("this number is too long", token) from None
        if isinstance(value, float) and isinf(value):
            raise Misread("this number is too large", token)
        return Part(value, token, plain=True)

    def constant(self, token: Token) -> Part:
        return Part({"true": True, "false": False, "null": None}[token.value], token, plain=True)

    def var(self, token: Token) -> Part:
        return Part(Var(token.value), token)

    def symbol(self, token: Token) -> Token:
        return token

    def a_type(self, token: Token) -> str:
        return str(token)

    def items(self, at: Token, *parts: Part) -> Part:
        if all(part.plain for part in parts):
            return Part([part.value for part in parts], at, highest(parts), plain=True)
        return made(at, highest(parts), List_, [given(part) for part in parts])

    def record(self, at: Token, *pairs: Setting) -> Part:
        keys: set[str] = set()
        for key, _ in pairs:
            if key.value in keys:
                raise Misread(f"the record has the key {key.value!r} twice", key)
            keys.add(key.value)
        height = highest(part for _, part in pairs)
        if all(part.plain for _, part in pairs):
            return Part({key.value: part.value for key, part in pairs}, at, height, plain=True)
        return made(at, height, Obj, {key.value: given(part) for key, part in pairs})

    def pair(self, key: Token, part: Part) -> Setting:
        return Setting(key, part)

    # --- calls ---

    def argument(self, key: Token | None, part: Part) -> Setting | Part:
        return part if key is None else Setting(key, part)

    def arguments(self, *given: Setting | Part) -> tuple[Setting | Part, ...]:
        return given

    def call(self, op: Token, arguments: tuple[Setting | Part, ...] | None) -> Part:
        if not arguments:
            return made(op, 1, Call, op.value)
        settings = [one for one in arguments if isinstance(one, Setting)]
        bare = [one for one in arguments if isinstance(one, Part)]
        if not settings and len(bare) == 1:
            return made(op, highest(bare), Call, op.value, (given(bare[0]),))
        if settings and bare:
            raise Misread("arguments with and without names are mixed", bare[0].at, "give each argument its name")
        for part in bare:  # two symbols or more stand for themselves
            if not isinstance(part.value, Var):
                raise Misread("one of several arguments has no name", part.at, "write name: value")
            settings.append(Setting(Token("KEY", part.value.name, 0, part.at.line, part.at.column), part))
        known = {key.value: a_value for key, _ in settings}
        fields = settle(op, settings, known)
        return made(op, 1 + highest(part for _, part in settings), Call, op.value, (Obj(fields),))

    def peek(self, head: Token, name: Token) -> Part:
        return Part(Peek(name.value), head)

    def fmt(self, head: Token, template: Token) -> Part:
        return Part(Format(template.value), head)

    def parse(self, head: Token, part: Part, key: Token, to: Token) -> Part:
        if key.value != "as" or to.value not in PARSE_AS:
            raise Misread(
                "parse takes a value and what to read it as",
                key if key.value != "as" else to,
                f'write parse(x, as: "json"), or another of {", ".join(PARSE_AS)}',
            )
        return made(head, highest([part]), Parse, given(part), cast("ParseAs", to.value))

    def ai_segment(self, head: Token, arguments: tuple[Setting | Part, ...] | None) -> Part:
        settings = []
        for one in arguments or ():
            if isinstance(one, Part):
                raise Misread("ai_segment takes named arguments only", one.at, "write goal: value")
            settings.append(one)
        known = {"goal": a_value, "tools": texts, "max_rounds": a_count, "until": a_text, "on_exhausted": a_word}
        fields = settle(head, settings, known, "goal")
        return made(head, highest(part for _, part in settings), AiSegment, **fields)

    # --- formulas ---

    def formula(self, first: Part, *rest: Any) -> Part:
        operands, waiting = [first], list[Token]()
        for op, operand in zip(rest[::2], rest[1::2], strict=True):
            while waiting and BINDS[waiting[-1].value] >= BINDS[op.value]:
                self._apply(waiting.pop(), operands)
            waiting.append(op)
            operands.append(operand)
        while waiting:
            self._apply(waiting.pop(), operands)
        return operands[0]

    def _apply(self, op: Token, operands: list[Part]) -> None:
        """Put the last two operands together."""
        right, left = operands.pop(), operands.pop()
        args = (given(left), given(right))
        operands.append(made(left.at, highest((left, right)), Expr, cast("Operator", op.value), args))

    def unary(self, op: Token, part: Part) -> Part:
        return made(op, highest([part]), Expr, "!" if op.value == "!" else "neg", (given(part),))

    def access(self, first: Token, second: Token | None = None) -> str | int:
        if second is None:
            return str(first)
        return str(second) if second.type == "STRING" else a_count(self.number(second))

    def field(self, *parts: Any) -> Part:
        primary, *path = parts
        optional = path.pop() is not None
        return made(primary.at, highest([primary]), Field, given(primary), tuple(path), optional)

    # --- settings ---

    def setting(self, key: Token, part: Part | Token) -> Setting:
        return Setting(key, span(part) if isinstance(part, Token) else part)

    def settings(self, *settings: Setting) -> tuple[Setting, ...]:
        return settings

    options = settings
