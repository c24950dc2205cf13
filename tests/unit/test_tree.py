"""The tree: chaining, equality, ids and paths."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Generic, Literal, NewType, Optional, TypeVar, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import bb
from bb.flows.tree import KINDS, Body, body_of, children, flow_id, gathered, is_durable, picks_of, walk
from tests.strategies import Part, Plot, World, parts, plots


async def send(text: str) -> None:
    pass


async def post(text: str) -> None:
    pass


A, B, C = (bb.Flow().with_agent(bb.Agent(name)) for name in "abc")
M, N = bb.FixedModel("m"), bb.FixedModel("n")


def paths(flow: bb.AnyFlow) -> list[str]:
    return [path for path, _ in walk(flow)]


# --- chaining ---


def test_chains_are_flat_on_both_sides() -> None:
    assert A.next(B.next(C)) == A.next(B).next(C) == bb.Chain((A, B, C))
    assert (A >> (B >> C)).steps == (A, B, C)
    assert bb.Chain((A, bb.Chain((B, C)))).steps == (A, B, C)


def test_a_named_chain_stays_one_step() -> None:
    named = (B >> C).with_id("x")
    assert (A >> named).steps == (A, named)
    assert (named >> A).steps == (named, A)
    assert (named.durable() >> A).steps == (named.durable(), A)


def test_a_chains_model_goes_to_its_steps_when_it_is_chained() -> None:
    own = B.with_model(N)
    flat = (A >> own >> C.with_id("c") >> C.with_id("d").durable()).with_model(M) >> A
    models = [cast("Body", body_of(step)).model for step in flat.steps]
    assert models == [M, N, M, M, None]
    assert flat.model is None
    assert (A >> B).with_model(M).with_id("x").body.model is M


@given(st.lists(parts(max_leaves=3), min_size=3, max_size=3))
@settings(max_examples=50)
def test_chaining_is_associative(three: list[Part]) -> None:
    world = World()
    one, two, last = (_prefixed(Plot(part).flow(world), prefix) for part, prefix in zip(three, "xyz", strict=True))
    left, right = (one >> two) >> last, one >> (two >> last)
    assert left == right
    assert hash(left) == hash(right)
    assert bb.signature(left) == bb.signature(right)
    assert paths(left) == paths(right)


def _prefixed(flow: bb.AnyFlow, prefix: str) -> bb.AnyFlow:
    """The flow with ids at its top that meet no others."""
    match flow:
        case bb.Chain(steps=steps):
            return bb.Chain([_prefixed(step, prefix) for step in steps])
        case bb.NamedFlow(body=body, id=id):
            return bb.NamedFlow(body, prefix + id)
        case bb.DurableFlow(body=body, id=id, options=options):
            return bb.DurableFlow(body, prefix + id, options)
        case _:
            return flow


# --- equality ---


def test_equality_is_of_kinds_ids_options_and_agents() -> None:
    assert bb.Flow().with_agent(bb.Agent("a")) == A
    assert A != B
    beside: list[bb.AnyFlow] = [bb.All(A), bb.Group(A), bb.One(A), bb.Select(A.with_id("a"))]
    assert len(set(beside)) == 4
    assert A.with_id("x") == A.with_id("x")
    assert A.with_id("x") != A.with_id("y")
    both: list[bb.AnyFlow] = [A.with_id("x"), A.with_id("x").durable()]
    assert both[0] != both[1]
    assert A.with_id("x").durable() != A.with_id("x").durable(retries=1)
    assert A.with_id("x").durable(ttl=timedelta(1)) == A.with_id("x").durable(ttl=timedelta(1))
    assert bb.Flow().with_agent(bb.Agent("a", "2")) != A
    assert bb.Flow().with_agent(bb.Agent("a").selects("x")) != A
    assert A >> B != B >> A
    assert bb.All(A, B) != bb.All(B, A)


def test_models_and_functions_do_not_count() -> None:
    async def answer(turn: bb.Turn, chat: bb.ModelChat) -> None:
        pass

    assert A.with_model(M) == A
    assert bb.All(A).with_model(M) == bb.All(A).with_model(N) == bb.All(A)
    assert bb.Flow().with_agent(bb.Agent("a").with_model(M).with_role("r").on_message(answer)) == A
    assert bb.Notify(send, name="out") == bb.Notify(post, name="out")
    assert bb.Notify(send) != bb.Notify(post)  # by name they differ
    assert hash(A) == hash(A.with_model(M))


def test_notify_is_named_after_its_function() -> None:
    assert bb.Notify(send).name == "send"
    assert bb.Notify(send, name="mail").name == "mail"


@given(plots(max_leaves=6))
@settings(max_examples=50)
def test_a_flow_built_twice_is_one_flow(plot: Plot) -> None:
    one, other = plot.flow(World()), plot.flow(World())
    assert one == other
    assert hash(one) == hash(other)
    assert bb.signature(one) == bb.signature(other)


# --- ids ---


def test_which_id_a_flow_answers_to() -> None:
    x, y = A.with_id("x"), B.with_id("y")
    assert flow_id(A) == flow_id(bb.All(x)) == flow_id(bb.Respond()) == ""
    assert flow_id(x) == flow_id(x.durable()) == flow_id(x >> bb.Respond()) == "x"
    assert flow_id(x >> y) == ""
    assert flow_id((x >> y).with_id("both")) == "both"


@pytest.mark.parametrize(
    "build",
    [
        lambda x: x >> A >> x,
        lambda x: x >> x.durable(),
        lambda x: bb.All(x, x),
        lambda x: bb.One(x, x.durable()),
        lambda x: bb.Group(x, A, x),
        lambda x: bb.Select(x, x),
    ],
)
def test_siblings_with_one_id_are_refused(build: object) -> None:
    assert callable(build)
    with pytest.raises(bb.WiringError, match="two parts with the id 'x'"):
        build(A.with_id("x"))


def test_one_flow_may_stand_in_several_places() -> None:
    x = A.with_id("x")
    flow = x >> bb.All(x, bb.Group(x)) >> (x >> B).with_id("y")
    assert len(set(paths(flow))) == len(paths(flow))


# --- paths ---


def test_paths_are_absolute_and_made_of_ids_and_slots() -> None:
    inner = (A >> bb.All(B, C.with_id("c"))).with_id("inner").durable()
    flow = (A >> inner >> bb.Select(B.with_id("b")) >> bb.Respond() >> bb.Notify(send)).with_id("root")
    assert paths(flow) == [
        "root",
        "root/body~agents.0",
        "root/inner",
        "root/inner/body~agents.0",
        "root/inner/body~all.1",
        "root/inner/body~all.1/branch~agents.0",
        "root/inner/body~all.1/c",
        "root/body~select.2",
        "root/body~select.2/b",
        "root/body~respond.3",
        "root/body~notify.4",
    ]
    assert paths(A) == ["flow~agents.0"]


def test_the_wrapper_is_the_segment_and_the_body_adds_none() -> None:
    assert [name for name, _ in children(bb.All(A.with_id("x")).with_id("y"))] == ["x"]
    assert paths(A.with_id("x").durable()) == ["x"]


@given(plots())
@settings(max_examples=50)
def test_every_path_is_unique(plot: Plot) -> None:
    found = paths(plot.durable(World()))
    assert len(set(found)) == len(found)
    assert all(path.startswith("root") for path in found)


# --- the rest ---


def test_what_a_selection_meets() -> None:
    x, y = A.with_id("x"), B.with_id("y")
    ids = frozenset({"x", "y"})
    select = bb.Select(x, y)
    assert picks_of([select]) == ids
    assert picks_of([bb.Respond(), bb.Notify(send), select.with_id("s")]) == ids
    assert picks_of([(bb.Respond() >> select >> C).with_id("later")]) == ids
    assert picks_of([(bb.Respond() >> bb.Respond()).with_id("on"), select]) == ids
    assert picks_of([C, select]) is None
    assert picks_of([bb.All(C), select]) is None
    assert picks_of([bb.Respond()], ids) == ids
    assert picks_of([C], ids) is None


def test_whether_any_part_is_durable() -> None:
    assert not is_durable((A >> bb.All(B.with_id("b"))).with_id("x"))
    assert is_durable((A >> bb.All(B.with_id("b").durable())).with_id("x"))


def test_every_kind_has_its_own_name() -> None:
    assert len({kind.kind for kind in KINDS}) == len(KINDS)


# --- triggers ---


def test_a_chains_model_goes_to_what_its_triggers_start() -> None:
    own = B.with_model(N)
    flat = (A >> bb.Webhook("w", A, own, C.with_id("c"))).with_model(M) >> A
    hook = flat.steps[1]
    assert isinstance(hook, bb.Webhook)
    assert [cast("Body", body_of(step)).model for step in hook.body] == [M, N, M]


def test_what_follows_a_trigger_without_a_body_is_its_body_when_it_runs() -> None:
    bare = bb.Webhook("w")
    assert gathered((A, B)) == (A, B)
    assert gathered((A, bare, B, C)) == (A, bb.Webhook("w", B, C))
    assert gathered((A, bare)) == (A, bare)
    assert gathered((bb.Webhook("w", A), B)) == (bb.Webhook("w", A), B)
    assert gathered((bare, A, bb.Webhook("v"), B)) == (bb.Webhook("w", A, bb.Webhook("v"), B),)
    assert (A >> bare >> B).steps == (A, bare, B)  # as written, chaining stays associative


def test_a_selection_passes_a_trigger_and_meets_nothing_that_runs_later() -> None:
    select = bb.Select(A.with_id("a"))
    assert picks_of((bb.Webhook("w", B), select)) == frozenset({"a"})
    assert picks_of((bb.Webhook("w"), select)) is None
    assert picks_of((bb.Webhook("w"), select), frozenset({"outer"})) == frozenset({"outer"})


def test_the_body_of_a_trigger_has_no_twins() -> None:
    for trigger in (lambda *body: bb.Every("* * * * *", *body), lambda *body: bb.Webhook("w", *body)):
        with pytest.raises(bb.WiringError, match="two parts with the id 'x'"):
            trigger(A.with_id("x"), B.with_id("x"))


def test_spaces_in_a_timetable_do_not_count() -> None:
    assert bb.Every(" 0  9 * * * ", A) == bb.Every("0 9 * * *", A)
    assert bb.Every("0 9 * * *", A) != bb.Every("0 9 * * *", A, tz="UTC")
    assert bb.signature(bb.Every("0 9 * * *", A)) != bb.signature(bb.Every("0 9 * * *"))


T = TypeVar("T")
Key = NewType("Key", str)


class Box(Generic[T]):
    """A class of one's own, with a parameter."""


@pytest.mark.parametrize(
    ("of", "written"),
    [
        (int, "Number"),
        (object, "Any"),
        (list[int], "List<Number>"),
        (tuple[int, ...], "List<Number>"),
        (tuple[int, str], "List<Any>"),
        (tuple[int], "List<Any>"),
        (tuple[()], "List<Any>"),
        (set[bool], "List<Bool>"),
        (list[dict[str, int]], "List<dict>"),
        (list[int | None], "List<Any>"),
        (dict, "dict"),
        (dict[str, Any], "dict"),
        (Mapping[str, int], "Mapping"),
        (Box[int], "Box"),
        (int | str, "Any"),
        (Optional[int], "Any"),
        (Literal["a", "b"], "Any"),
        (Annotated[list[str], "names"], "List<String>"),
        (Key, "String"),
    ],
)
def test_a_python_type_is_as_much_as_the_language_can_say_of_it(of: Any, written: str) -> None:
    """Whatever the type checker takes, a flow takes: types are hints."""
    flow = (bb.Await("form", type=of) >> bb.Bind("q", bb.ref("w"), type=of)).with_id("f").with_params(w=of)
    assert [param.type for param in flow.params] == [written]
    as_text = bb.Await("form", type=written) >> bb.Bind("q", bb.ref("w"), type=written)
    assert flow == as_text.with_id("f").with_params(w=written)
    assert bb.wire.from_wire(bb.wire.to_wire(flow.durable())) == flow.durable()


@pytest.mark.parametrize("of", [1, "List<", "dict[str, int]", b"int", [int]])
def test_what_is_no_type_is_refused(of: Any) -> None:
    with pytest.raises(bb.WiringError, match="is no type"):
        bb.Bind("q", 1, type=of)
