"""Rules of calls and model stages: the op, its arguments, and where a call or another kind of value may stand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from bb.check.scene import Rule, Scene
from bb.check.sites import Site
from bb.check.spots import Spot, parts
from bb.flows.expressions import Format, List_, Lit, Obj
from bb.flows.names import CONTROLS, is_op_name, is_symbol
from bb.flows.tree import AiSegment, Await, Call, WithTools
from bb.ops import Op

if TYPE_CHECKING:
    from bb.flows.expressions import Value


def _op(call: Call[Any], scene: Scene) -> Op[Any, Any] | None:
    """The op that is called, if it is known: the one that made the call, else the catalogue's."""
    if isinstance(call.bound, Op):
        return call.bound
    return scene.catalogue.ops.get(call.op) if scene.catalogue is not None else None


def _record(call: Call[Any]) -> Mapping[str, object] | None:
    """The arguments by name; None when there is no telling, or the only one has no name."""
    match call.args:
        case ():
            return {}
        case (Obj(fields=fields),):
            return fields
        case (Lit(value=dict() as literal),):
            return {str(name): value for name, value in literal.items()}
        case _:
            return None


def _op_name(spot: Spot, _: Scene) -> Iterator[str]:
    if isinstance(spot.value, Call) and not is_op_name(spot.value.op):
        yield f"{spot.value.op!r} is no name of an op; use identifiers joined by dots, the first no word of the language"


def _tool_names(site: Site, _: Scene) -> Iterator[str]:
    if isinstance(site.body, WithTools):
        for name in site.body.tools:
            if not is_op_name(name):
                yield f"{name!r} is no name of an op; use identifiers joined by dots, the first no word of the language"


def _op_unknown(spot: Spot, scene: Scene) -> Iterator[str]:
    call = spot.value
    if not isinstance(call, Call) or scene.catalogue is None or not is_op_name(call.op):
        return
    if _op(call, scene) is None:
        yield f"no op is named {call.op!r}; give it to the App: App(ops=[...])"


def _tools_unknown(site: Site, scene: Scene) -> Iterator[str]:
    if isinstance(site.body, WithTools) and scene.catalogue is not None:
        for name in site.body.tools:
            if is_op_name(name) and name not in scene.catalogue.ops and name not in scene.used:
                yield f"no op is named {name!r}, so nothing is allowed by it; correct the name or give the op to the App"


def _arg_count(spot: Spot, scene: Scene) -> Iterator[str]:
    call = spot.value
    if not isinstance(call, Call):
        return
    if len(call.args) > 1:
        yield f"{call.op} is given {len(call.args)} arguments without names; give them by name"
    op = _op(call, scene)
    if op is not None and len(call.args) == 1 and _record(call) is None and len(op.required) != 1:
        yield (
            f"{call.op} takes {', '.join(op.params) or 'no arguments'}, so one argument without a name does not say which it "
            "is; give it by name"
        )


def _arg_missing(spot: Spot, scene: Scene) -> Iterator[str]:
    call = spot.value
    if not isinstance(call, Call):
        return
    op, record = _op(call, scene), _record(call)
    if op is not None and record is not None:
        for name in op.required:
            if name not in record:
                yield f"{call.op} needs the argument {name}; give it"


def _arg_unknown(spot: Spot, scene: Scene) -> Iterator[str]:
    call = spot.value
    if not isinstance(call, Call):
        return
    op, record = _op(call, scene), _record(call)
    if op is not None and record is not None:
        for name in record:
            if name not in op.params:
                yield f"{call.op} has no argument {name!r}; it takes {', '.join(op.params) or 'none'}"


def _leaf_kind(spot: Spot, _: Scene) -> Iterator[str]:
    if spot.role == "leaf" and isinstance(spot.value, Call | AiSegment):
        yield "a call inside a record or list hides an effect; bind it to a symbol before, and use that"


_MOST_TOOLS: Final = 64  # of a model stage
_NO_CONDITION: Final = (Format, Obj, List_, AiSegment)


def _cond_kind(spot: Spot, _: Scene) -> Iterator[str]:
    if spot.role == "cond" and isinstance(spot.value, _NO_CONDITION):
        what = "a model stage" if isinstance(spot.value, AiSegment) else "a text, record or list made on the spot"
        yield f"{what} is no condition; use a symbol, a part of one, a comparison, Peek or a call"


def _await_cond_impure(spot: Spot, _: Scene) -> Iterator[str]:
    if isinstance(spot.site.body, Await) and spot.role == "cond" and _has_call(spot.value):
        yield "whether to wait must be found out without an effect; bind the call before the await, and test the symbol"


def _has_call(value: Value) -> bool:
    if isinstance(value, Call | AiSegment):
        return True
    return any(_has_call(inner) for _, _, inner in parts(value, "cond"))


def _segment_goal(spot: Spot, _: Scene) -> Iterator[str]:
    if isinstance(spot.value, AiSegment) and isinstance(spot.value.goal, Lit):
        goal = spot.value.goal.value
        if not isinstance(goal, str) or not goal.strip():
            yield "the goal of a model stage says nothing; write what it is to find or do"


def _segment_tools(spot: Spot, scene: Scene) -> Iterator[str]:
    if not isinstance(spot.value, AiSegment):
        return
    if len(spot.value.tools) > _MOST_TOOLS:
        yield f"{len(spot.value.tools)} tools are more than the {_MOST_TOOLS} a model is shown; name those the goal needs"
    for name in spot.value.tools:
        if not is_op_name(name):
            yield f"{name!r} is no name of an op that a model stage could use; name ops only"
        elif name in CONTROLS:
            yield f"{name!r} is what a model calls to end the stage; give the op another name"
        elif scene.catalogue is not None and name not in scene.catalogue.ops and name not in scene.used:
            yield f"no op is named {name!r}; give it to the App: App(ops=[...])"


def _segment_rounds(spot: Spot, _: Scene) -> Iterator[str]:
    if isinstance(spot.value, AiSegment):
        rounds: object = spot.value.max_rounds
        if type(rounds) is not int or rounds < 1:
            yield f"max_rounds is {rounds!r}; give a whole number, 1 or more"


def _segment_until(spot: Spot, _: Scene) -> Iterator[str]:
    if isinstance(spot.value, AiSegment) and spot.value.until is not None and not is_symbol(spot.value.until):
        yield f"{spot.value.until!r} is no name of a symbol, so it can never be filled; name one"


def _no_model(spot: Spot, _: Scene) -> Iterator[str]:
    if isinstance(spot.value, AiSegment) and spot.value.model is None and spot.site.model is None:
        yield "a model stage without a model; give it with_model(...), or name a model on a flow around it or on the App"


SITES: Final = (
    Rule("op-name", _tool_names),
    Rule("tools-unknown", _tools_unknown, warning=True),
)
SPOTS: Final = (
    Rule("op-name", _op_name),
    Rule("op-unknown", _op_unknown),
    Rule("arg-count", _arg_count),
    Rule("arg-missing", _arg_missing),
    Rule("arg-unknown", _arg_unknown),
    Rule("leaf-kind", _leaf_kind),
    Rule("cond-kind", _cond_kind),
    Rule("await-cond-impure", _await_cond_impure),
    Rule("segment-goal", _segment_goal),
    Rule("segment-tools", _segment_tools),
    Rule("segment-rounds", _segment_rounds),
    Rule("segment-until", _segment_until),
    Rule("no-model", _no_model),
)
