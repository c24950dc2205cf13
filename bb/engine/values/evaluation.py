"""What a pure expression comes to, given what symbols hold and what its calls came to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final, assert_never

from attrs import frozen

from bb.engine.values.operators import LONGEST, is_true, one, two
from bb.engine.values.parsing import coerce, parse
from bb.errors import InvalidValue, Unbound
from bb.flows.calls import AiSegment, Call
from bb.flows.durability import Peek
from bb.flows.expressions import UNARY, Expr, Field, Format, List_, Lit, Obj, Parse, Var
from bb.plain import in_short, text_of

if TYPE_CHECKING:
    from bb.flows.expressions import Value

__all__ = ["Unmade", "calls_in", "coerce", "evaluate", "is_true", "needs_of", "parse", "text_of"]

_NAMED: Final = r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*|\[[0-9]{1,9}\])*"
_HOLE: Final = re.compile(rf"\\\{{|\{{\{{({_NAMED})\}}\}}|\{{({_NAMED})\}}")
_PARTS: Final = re.compile(r"[A-Za-z0-9_]+")
_MISSING: Final = object()


def evaluate(value: Value, symbols: Mapping[str, object], results: Sequence[object] = ()) -> object:
    """What a value comes to. Nothing mutable in it is shared with a literal; what a symbol holds is given as it is.

    `results` are what the calls came to, in the order of `calls_in`: none is dispatched here. Where the right of an `&&` or
    `||` was not needed, so that its calls were not made, an `Unmade` stands for each of them.

    Raises:
        Unbound: a symbol that is needed holds nothing.
        InvalidValue: an operator, a part or a text does not fit.
    """
    try:
        return _Evaluation(symbols, iter(results)).of(value)
    except RecursionError:
        raise InvalidValue("an expression is nested too deep", remedy="bind parts of it to symbols first") from None


@frozen(eq=False)
class Unmade:
    """Stands for a call that was not made, since what is left of it decided: to this."""

    first: object


def needs_of(value: Value) -> Iterator[Call[Any] | AiSegment | Expr]:
    """The calls of a value as `calls_in`, but each `&&` and `||` whose right may not be needed instead of the calls in it."""
    match value:
        case Expr(op="&&" | "||", args=(_, right)) if calls_in(right):
            yield value
        case Call() | AiSegment():
            yield value
        case _:
            for part in _parts(value):
                yield from needs_of(part)


def calls_in(value: Value) -> tuple[Call[Any] | AiSegment, ...]:
    """The calls that a value needs, in the order in which they are made; those among the arguments of a call are its own.

    Each place counts: a call that stands twice in a value is there twice. The fields of a record go by their names, since
    records that differ only in order are equal.
    """
    return tuple(_calls(value))


def _calls(value: Value) -> Iterator[Call[Any] | AiSegment]:
    if isinstance(value, Call | AiSegment):
        yield value
    for part in _parts(value):
        yield from _calls(part)


def _parts(value: Value) -> Sequence[Value]:
    """The values inside a value, in the order in which they are worked out."""
    match value:
        case Field(value=inner) | Parse(value=inner):
            return (inner,)
        case Expr(args=parts) | List_(items=parts):
            return parts
        case Obj(fields=fields):
            return [fields[name] for name in sorted(fields)]
        case Lit() | Var() | Peek() | Format() | Call() | AiSegment():
            return ()
        case unreachable:
            assert_never(unreachable)


class _Evaluation:
    """One walk over a value, taking the results of its calls as it meets them."""

    __slots__ = ("_results", "_symbols")

    def __init__(self, symbols: Mapping[str, object], results: Iterator[object]) -> None:
        self._symbols = symbols
        self._results = results

    def of(self, value: Value) -> object:
        match value:
            case Lit(value=literal):
                return self._literal(literal)
            case Var(name=name):
                return self._symbol(name)
            case Peek(name=name):
                return self._symbols.get(name)
            case Field():
                return self._field(value)
            case Format(template=template):
                return self._filled(template)
            case Parse(value=inner, to=to):
                return parse(self.of(inner), to)
            case Expr():
                return self._operated(value)
            case Obj(fields=fields):
                made = {name: self.of(fields[name]) for name in sorted(fields)}
                return {name: made[name] for name in fields}
            case List_(items=items):
                return [self.of(item) for item in items]
            case Call() | AiSegment():
                return self._result(value)
            case unreachable:
                assert_never(unreachable)

    def _literal(self, value: object) -> object:
        """A copy of its own, with the names in its texts replaced."""
        if type(value) is str:
            return self._filled(value)
        if type(value) is list:
            return [self._literal(item) for item in value]
        if type(value) is tuple:
            return tuple(self._literal(item) for item in value)
        if type(value) is dict:
            return {key: self._literal(item) for key, item in value.items()}
        return deepcopy(value)

    def _symbol(self, name: str) -> object:
        found = self._symbols.get(name, _MISSING)
        if found is _MISSING:
            raise Unbound(f"nothing is bound to {name!r}", remedy="bind it before it is used, or use peek")
        return found

    def _result(self, call: Call[Any] | AiSegment) -> object:
        result = next(self._results, _MISSING)
        if result is _MISSING:
            what = call.op if isinstance(call, Call) else call.kind
            raise InvalidValue(f"nobody has performed the call of {what}", remedy="calls have no place here")
        return result

    def _operated(self, expr: Expr) -> object:
        op = expr.op
        if op in UNARY:
            return one(op, self.of(expr.args[0]))
        left, right = expr.args
        first = self.of(left)
        if op not in ("&&", "||"):
            return two(op, first, self.of(right))
        made = [next(self._results, _MISSING) for _ in _calls(right)]
        if made and isinstance(made[0], Unmade):
            return made[0].first
        return _Evaluation(self._symbols, iter(made)).of(right) if is_true(first) is (op == "&&") else first

    def _field(self, field: Field) -> object:
        value = self.of(field.value)
        for index, part in enumerate(field.path):
            inner = _part(value, part)
            if inner is _MISSING:
                if field.optional:
                    return None
                where = _spelled(field.value, field.path[:index])
                raise InvalidValue(
                    f"{where} has no {part!r}: it is {in_short(value)}",
                    remedy="name a part it has, or make it optional",
                )
            value = inner
        return value

    def _filled(self, template: str) -> str:
        """A template with what symbols hold in its holes; a hole for nothing stays as it stands."""
        if "{" not in template:
            return template
        pieces: list[str] = []
        size = end = 0
        for hole in _HOLE.finditer(template):
            named = hole[1] or hole[2]
            piece = "{" if named is None else self._named(named)
            pieces += (template[end : hole.start()], hole[0] if piece is None else piece)
            size += len(pieces[-1])
            if size > LONGEST:
                raise InvalidValue(f"a text would have more than {LONGEST:,} characters", remedy="use smaller values")
            end = hole.end()
        return "".join((*pieces, template[end:]))

    def _named(self, named: str) -> str | None:
        name, *parts = _PARTS.findall(named)
        value = self._symbols.get(name, _MISSING)
        for part in parts:
            value = _part(value, int(part) if part.isdigit() else part)
        return None if value is _MISSING else text_of(value)


def _part(value: object, part: str | int) -> object:
    """A key, position or public attribute of a value, or that it is missing. Functions are no parts."""
    if value is _MISSING:
        return value
    try:
        if isinstance(value, Mapping):
            return value[part]
        if isinstance(part, int):
            return value[part] if isinstance(value, Sequence) else _MISSING
        found = _MISSING if part.startswith("_") else getattr(value, part)
    except (LookupError, AttributeError):
        return _MISSING
    except Exception as error:  # a property is code of anybody's class
        raise InvalidValue(
            f"{part!r} of {in_short(value)} cannot be read: {type(error).__name__}", remedy="mend its class"
        ) from error
    return _MISSING if callable(found) else found


def _spelled(value: Value, path: Sequence[str | int]) -> str:
    """How a value is written, as far as that is short."""
    head = value.name if isinstance(value, Var | Peek) else value.op if isinstance(value, Call) else f"a {value.kind}"
    if isinstance(value, Field):
        head = _spelled(value.value, value.path)
    return head + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
