"""The operators of expressions, and what counts as true."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final, TypeAlias

from bb.errors import InvalidValue
from bb.flows.expressions import Operator
from bb.plain import PRINTABLE, in_short

Number: TypeAlias = int | float | Decimal

LONGEST: Final = 16 * 2**20
"""Characters of a text, or items of a list, that an expression may come to."""

_ARITHMETIC: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
_ORDER: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def is_true(value: object) -> bool:
    """Whether a condition of this value holds.

    None, False, zero, what is empty, and the texts `0` and `false` (in any case, blanks around them) are false.
    """
    if isinstance(value, str):
        return value.strip().lower() not in ("", "0", "false")
    if value is None or isinstance(value, int | float | Decimal | bytes | list | tuple | dict | set | frozenset):
        return bool(value)
    return True


def is_number(value: object) -> bool:
    """Whether arithmetic takes it; a bool is no number."""
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def one(op: Operator, value: object) -> object:
    """`!` or `neg` of a value.

    Raises:
        InvalidValue: it has no negative.
    """
    if op == "!":
        return not is_true(value)
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        try:
            return -value
        except ArithmeticError:  # a decimal that signals that it is no number
            pass
    raise InvalidValue(f"{in_short(value)} has no negative", remedy="give a number")


def two(op: Operator, left: object, right: object) -> object:
    """What an operator other than `&&` and `||` makes of two values.

    Raises:
        InvalidValue: it does not take them.
    """
    try:
        if op in ("==", "!="):
            return _equal(left, right) is (op == "==")
        if op in _ORDER:
            return _ordered(op, left, right)
        if is_number(left) and is_number(right):
            return _calculated(op, left, right)
        if op == "+":
            return _joined(left, right)
    except InvalidValue:
        raise
    except Exception as error:  # comparing runs code of anybody's class
        raise _refusal(op, left, right, f"{type(error).__name__}") from error
    raise _refusal(op, left, right, "only numbers can be calculated with")


def _refusal(op: str, left: object, right: object, why: str) -> InvalidValue:
    return InvalidValue(f"{in_short(left)} {op} {in_short(right)}: {why}", remedy="give values that go together")


def _aligned(left: Any, right: Any) -> tuple[Any, Any]:
    """Two numbers that can be calculated with: beside a decimal, a float is the decimal that it reads as."""
    if isinstance(left, Decimal) and isinstance(right, float):
        return left, Decimal(repr(right))
    if isinstance(left, float) and isinstance(right, Decimal):
        return Decimal(repr(left)), right
    return left, right


def _equal(left: Any, right: Any) -> bool:
    """Python's equality, but a bool equals no number, all the way down."""
    if isinstance(left, bool) != isinstance(right, bool):
        return False
    if is_number(left) and is_number(right):
        left, right = _aligned(left, right)
    elif type(left) is type(right):
        if isinstance(left, list | tuple):
            return len(left) == len(right) and all(map(_equal, left, right))
        if isinstance(left, dict):
            return left.keys() == right.keys() and all(_equal(part, right[key]) for key, part in left.items())
    return bool(left == right)


def _ordered(op: str, left: Any, right: Any) -> bool:
    if is_number(left) and is_number(right):
        left, right = _aligned(left, right)
    elif type(left) is not type(right) and not (isinstance(left, str) and isinstance(right, str)):
        raise _refusal(op, left, right, "only values of one kind have an order")
    try:
        return bool(_ORDER[op](left, right))
    except TypeError:
        raise _refusal(op, left, right, "they have no order") from None


def _calculated(op: str, left: Any, right: Any) -> object:
    if op == "/" and not right:
        raise _refusal(op, left, right, "division by zero")
    whole = isinstance(left, int) and isinstance(right, int)
    if op == "*" and whole and left.bit_length() + right.bit_length() > PRINTABLE:
        raise _refusal(op, left, right, "the result is too large")
    first, second = _aligned(left, right)
    try:
        result = _ARITHMETIC[op](first, second)
    except ArithmeticError:
        raise _refusal(op, left, right, "the result is no number, or too large") from None
    if isinstance(result, int) and result.bit_length() > PRINTABLE:
        raise _refusal(op, left, right, "the result is too large")
    return result


def _joined(left: object, right: object) -> object:
    if isinstance(left, str) and isinstance(right, str):
        _check_length(len(left) + len(right))
        return left + right
    if isinstance(left, list) and isinstance(right, list):
        _check_length(len(left) + len(right))
        return [*left, *right]
    if isinstance(left, tuple) and isinstance(right, tuple):
        _check_length(len(left) + len(right))
        return (*left, *right)
    raise _refusal("+", left, right, "only two numbers, two texts or two lists can be added")


def _check_length(size: int) -> None:
    if size > LONGEST:
        raise InvalidValue(
            f"an expression would come to {size:,} characters or items, more than {LONGEST:,}",
            remedy="work with smaller pieces",
        )
