"""Pure expressions: values that a statement is given, worked out from literals and symbols without any effect.

    Expression = Lit | Var | Field | Format | Parse | Expr | Obj | List_
    Value = Expression | Call | Peek | AiSegment

Every place that takes a value takes plain Python data as well, which is a literal there; a list or dict that holds
expressions becomes a `List_` or an `Obj`, which no other container could become without changing its kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeAlias, cast, final, get_args

from attrs import field, frozen

from bb.codec import canonical
from bb.errors import WiringError
from bb.flows.types import as_text
from bb.record import Record

if TYPE_CHECKING:
    from bb.flows.calls import AiSegment, Call
    from bb.flows.durability import Peek

ParseAs: TypeAlias = Literal["f64", "i64", "bool", "json", "string", "form"]
PARSE_AS: Final[tuple[str, ...]] = get_args(ParseAs)

Operator: TypeAlias = Literal["||", "&&", "==", "!=", "<", "<=", ">", ">=", "+", "-", "*", "/", "!", "neg"]
OPERATORS: Final[tuple[str, ...]] = get_args(Operator)
UNARY: Final = ("!", "neg")

_BUILDING: Final = ("bb.ops", "bb.flows.", "bb.agents.")  # where the parts of a flow come from, which are no data


class Valued(Record):
    """What can stand where a value is asked for. Sealed like the kinds of flow."""

    __slots__ = ()
    kind: ClassVar[str]


class Built:
    """What `bb.ref` gives in builder code: a value under construction, to be unwrapped by `as_value`."""

    __slots__ = ("_bb_value",)

    def __init__(self, value: Value) -> None:
        object.__setattr__(self, "_bb_value", value)


def as_value(value: object) -> Value:
    """Python data, a reference or an expression as a value of the tree.

    Raises:
        NotSavable: it holds something that has no literal form, such as a socket.
        WiringError: it is a part of a flow that has no value, such as an op that was not called; or expressions stand in
            a tuple, or in a dict beside a key that is no text.
    """
    if isinstance(value, Valued):
        return cast("Value", value)
    if isinstance(value, Built):
        return cast("Value", object.__getattribute__(value, "_bb_value"))
    if type(value).__module__.startswith(_BUILDING):
        name = type(value).__name__
        raise WiringError(
            f"{'an' if name[0] in 'AEO' else 'a'} {name} stands where a value belongs",
            remedy="call the op: op(...)" if name == "Op" else "give data, a reference or a call of an op",
        )
    try:
        is_made_of_values = type(value) in (list, dict, tuple) and _holds_values(value)
    except RecursionError:  # it holds itself, or nests too deep: no literal either, and that says where
        is_made_of_values = False
    if not is_made_of_values:
        return Lit(value)
    if isinstance(value, tuple):
        raise WiringError(
            "a tuple holds a reference or a call, and what a run puts together is a list",
            remedy="give a list, or bind the tuple from an op",
        )
    return Obj(value) if isinstance(value, dict) else List_(cast("list[object]", value))


def _holds_values(value: object) -> bool:
    if isinstance(value, Valued | Built):
        return True
    if type(value) is dict:
        return any(map(_holds_values, value.values()))
    return type(value) in (list, tuple) and any(map(_holds_values, cast("list[object]", value)))


def as_optional_value(value: object) -> Value | None:
    """`as_value`, or None for None: no value was given."""
    return None if value is None else as_value(value)


def _own(value: object) -> object:
    """A copy that nobody else can change."""
    if type(value) in (str, int, bool, float):
        return value
    try:
        return deepcopy(value)
    except RecursionError:  # it nests too deep for the codec as well, which says where
        return value


@final
@frozen(eq=False, repr=False)
class Lit(Valued):
    r"""A literal: any value the codec keeps. In its text `{name}` and `{{name}}` stand for symbols; `\{` is a brace.

    Equal by canonical bytes: 1, 1.0 and True differ.
    """

    kind: ClassVar[str] = "lit"
    value: object = field(eq=False, converter=_own)
    _form: bytes = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "_form", canonical(self.value))


@final
@frozen(eq=False, repr=False)
class Var(Valued):
    """The value of a symbol; an error when it is unbound."""

    kind: ClassVar[str] = "var"
    name: str = field(converter=as_text)


def _path(path: object) -> tuple[str | int, ...]:
    parts = tuple(cast("Iterable[object]", path)) if isinstance(path, list | tuple) else (path,)
    for part in parts:
        if not isinstance(part, str) and type(part) is not int:
            what = f"a {type(part).__name__}" if isinstance(part, slice | Built | Valued) else repr(part)
            raise WiringError(
                f"{what} is no part of a value that only a run will have",
                remedy="give a name or key as text, or a position as a whole number; let an op take anything else",
            )
    return cast("tuple[str | int, ...]", parts)


@final
@frozen(eq=False, repr=False)
class Field(Valued):
    """A part of a value: attributes, keys and positions, from the outside in. `optional`: None where a part is missing."""

    kind: ClassVar[str] = "field"
    value: Value = field(converter=as_value)
    path: tuple[str | int, ...] = field(converter=_path)
    optional: bool = False


@final
@frozen(eq=False, repr=False)
class Format(Valued):
    """A text with `{name}` replaced by what symbols hold; a name that is unbound stays as it stands."""

    kind: ClassVar[str] = "fmt"
    template: str = field(converter=as_text)


@final
@frozen(eq=False, repr=False)
class Parse(Valued):
    """A text read as a value: a number (`f64`, `i64`), `bool`, `json`, `form` (URL-encoded) or the `string` itself."""

    kind: ClassVar[str] = "parse"
    value: Value = field(converter=as_value)
    to: ParseAs

    def __attrs_post_init__(self) -> None:
        if self.to not in PARSE_AS:
            raise WiringError(f"nothing can be parsed as {self.to!r}", remedy=f"use one of {', '.join(PARSE_AS)}")


def as_values(values: Iterable[object]) -> tuple[Value, ...]:
    """Values as a node keeps them: whatever is none is a literal."""
    return tuple(map(as_value, values))


@final
@frozen(eq=False, repr=False)
class Expr(Valued):
    """An operator over values: `|| && == != < <= > >= + - * /` with two, `!` and `neg` with one."""

    kind: ClassVar[str] = "expr"
    op: Operator
    args: tuple[Value, ...] = field(converter=as_values)

    def __attrs_post_init__(self) -> None:
        if self.op not in OPERATORS:
            raise WiringError(f"{self.op!r} is no operator", remedy=f"use one of {' '.join(OPERATORS)}")
        if len(self.args) != (wanted := 1 if self.op in UNARY else 2):
            raise WiringError(f"operator {self.op!r} was given {len(self.args)} operands", remedy=f"give it {wanted}")


def _fields(fields: Mapping[str, object]) -> Mapping[str, Value]:
    for name in fields:
        if type(name) is not str:  # another text, or another kind of text, would be another key
            raise WiringError(
                f"the key {name!r} stands beside a reference or a call, and a record that a run puts together has texts",
                remedy="use a text as the key, or bind the dict from an op",
            )
    return MappingProxyType({name: as_value(value) for name, value in fields.items()})


def _items(fields: Mapping[str, Value]) -> tuple[tuple[str, Value], ...]:
    return tuple(sorted(fields.items()))


@final
@frozen(eq=False, repr=False)
class Obj(Valued):
    """A record built from values; the order of its fields does not count."""

    kind: ClassVar[str] = "obj"
    fields: Mapping[str, Value] = field(converter=_fields, eq=_items)


@final
@frozen(eq=False, repr=False)
class List_(Valued):  # noqa: N801 - List is taken
    """A list built from values."""

    kind: ClassVar[str] = "list"
    items: tuple[Value, ...] = field(converter=as_values)


Expression: TypeAlias = Lit | Var | Field | Format | Parse | Expr | Obj | List_
Value: TypeAlias = "Expression | Call[Any] | Peek | AiSegment"

EXPRESSIONS: Final = (Lit, Var, Field, Format, Parse, Expr, Obj, List_)
