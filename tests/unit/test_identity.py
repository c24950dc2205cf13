"""Signatures: what counts in them and what does not; and differences in words."""

from __future__ import annotations

import hashlib
from datetime import timedelta

import attrs
from hypothesis import given, settings

import bb
from bb.identity import tree
from bb.identity.match import match_paths
from tests.strategies import Plot, World, plots


async def send(text: str) -> None:
    pass


async def post(text: str) -> None:
    pass


async def answer(turn: bb.Turn, chat: bb.ModelChat) -> None:
    pass


async def other(turn: bb.Turn, chat: bb.ModelChat) -> None:
    pass


def agents(*names: str) -> bb.Flow:
    return bb.Flow().with_agent(*(bb.Agent(name) for name in names))


A, B, C = agents("a"), agents("b"), agents("c")


def same(one: bb.AnyFlow, two: bb.AnyFlow) -> bool:
    assert (bb.signature(one) == bb.signature(two)) == (bb.structural_diff(one, two) == ())
    return bb.signature(one) == bb.signature(two)


# --- signatures ---


def test_a_signature_is_sha_256_of_the_canonical_form() -> None:
    canonical = '{"kind":"agents","of":[["a",null,[]]]}'
    assert bb.signature(A) == hashlib.sha256(canonical.encode()).hexdigest()


def test_the_signature_of_a_known_flow_stays_what_it_was() -> None:
    """Stored runs hold signatures: changing how they are made starts every run of every user afresh."""
    router = bb.Flow().with_agent(bb.Agent("router", "2").selects("x", "y"))
    flow = (router >> bb.Select(A.with_id("x"), bb.All(B, C).with_id("y")) >> bb.Respond() >> bb.Notify(send)).with_id(
        "f"
    )
    assert bb.signature(flow) == GOLDEN


GOLDEN = "ffee304c83782cc98111865f4c7500d7b738e99dc08aaae007102ab7dd78d393"


def test_what_does_not_count() -> None:
    base = (A >> bb.All(B)).with_id("f")
    model = bb.FixedModel("m")
    assert same(base, base.with_model(model))
    assert same(base, (A.with_model(model) >> bb.All(B).with_model(model)).with_id("f"))
    assert same(A, bb.Flow().with_agent(bb.Agent("a").with_role("be kind").with_model(model)))
    assert same(
        bb.Flow().with_agent(bb.Agent("a").on_message(answer)), bb.Flow().with_agent(bb.Agent("a").on_message(other))
    )
    assert same(base, base.durable())
    assert same(base.durable(), base.durable(forward_compatible=True, retries=3, ttl=timedelta(1)))
    assert same((base.durable() >> C).with_id("g"), (base >> C).with_id("g"))
    assert same(bb.Notify(send, name="out"), bb.Notify(post, name="out"))


def test_what_counts() -> None:
    base = A.with_id("f")
    assert not same(base, A.with_id("g"))
    assert not same(base, B.with_id("f"))
    assert not same(base, A)
    assert not same(A >> B, B >> A)
    assert not same(A >> B, A)
    assert not same(bb.All(A, B), bb.Group(A, B))
    assert not same(bb.All(A, B), bb.All(B, A))
    assert not same(bb.All(A, B), agents("a", "b"))
    assert not same(A >> bb.Respond(), bb.Respond() >> A)
    assert not same(A, bb.Flow().with_agent(bb.Agent("a", "2")))
    assert not same(agents("a"), bb.Flow().with_agent(bb.Agent()))
    assert not same(A, bb.Flow().with_agent(bb.Agent("a").selects("x")))
    assert not same(bb.Notify(send), bb.Notify(send, name="mail"))
    assert not same(
        bb.Flow().with_agent(bb.Agent().on_message(answer)), bb.Flow().with_agent(bb.Agent().on_message(other))
    )
    assert not same(bb.All(bb.All(A)), bb.All(A))


def test_a_handlers_name_is_its_agents_name() -> None:
    assert same(bb.Flow().with_agent(bb.Agent().on_message(answer)), agents("answer"))


@given(plots(max_leaves=5), plots(max_leaves=5))
@settings(max_examples=75)
def test_equal_flows_and_only_those_have_one_signature(one: Plot, two: Plot) -> None:
    first, second = one.flow(World()), two.flow(World())
    if first == second:
        assert same(first, second)
    elif same(first, second):
        # all that equality counts beyond the signature is how durable the parts are
        assert _plain(first) == _plain(second)


def _plain(flow: bb.AnyFlow) -> bb.AnyFlow:
    """The flow with nothing durable in it."""
    match flow:
        case bb.NamedFlow(body=body, id=id) | bb.DurableFlow(body=body, id=id):
            inner = _plain(body)
            assert not isinstance(inner, bb.NamedFlow | bb.DurableFlow | bb.Every | bb.At | bb.Webhook)
            return bb.NamedFlow(inner, id)
        case bb.Chain(steps=steps):
            return attrs.evolve(flow, steps=tuple(map(_plain, steps)))
        case bb.All(members=members) | bb.One(members=members) | bb.Group(members=members) | bb.Select(members=members):
            return type(flow)(*map(_plain, members))
        case _:
            return flow


# --- differences in words ---


def said(old: bb.AnyFlow, new: bb.AnyFlow) -> tuple[str, ...]:
    """The sentences but for the last, which tells what stays valid."""
    sentences = bb.structural_diff(old, new)
    assert sentences[-1].startswith("savepoints that stay valid with forward_compatible=True: ")
    return sentences[:-1]


def valid(old: bb.AnyFlow, new: bb.AnyFlow) -> str:
    return bb.structural_diff(old, new)[-1].partition(": ")[2]


def test_equal_flows_have_no_difference() -> None:
    assert bb.structural_diff(A.with_id("f"), A.with_id("f").durable(retries=3)) == ()


def test_added_and_removed() -> None:
    x, y = A.with_id("x"), B.with_id("y")
    old, new = (x >> bb.Respond()).with_id("f"), (x >> bb.Respond() >> y).with_id("f")
    assert said(old, new) == ("added f/y (agents b)",)
    assert said(new, old) == ("removed f/y (agents b)",)


def test_replaced() -> None:
    old, new = (A.with_id("x") >> B).with_id("f"), (C.with_id("x") >> B).with_id("f")
    assert said(old, new) == ("replaced f/x: agents a became agents c",)
    versioned = bb.Flow().with_agent(bb.Agent("a", "2").selects("b", "c")).with_id("x")
    assert said(A.with_id("x"), versioned) == ("replaced x: agents a became agents a version 2 selecting b, c",)
    assert said(bb.All(A).with_id("x"), bb.Group(A).with_id("x")) == ("replaced x: all became group",)
    assert said(bb.Notify(send).with_id("x"), bb.Flow().with_id("x")) == ("replaced x: notify send became agents none",)


def test_moved_and_only_moved() -> None:
    x, y = A.with_id("x"), B.with_id("y")
    old = (x >> y >> bb.All(C).with_id("team")).with_id("f")
    new = (y >> bb.All(C, x).with_id("team")).with_id("f")
    assert said(old, new) == ("moved f/x to f/team/x",)


def test_reordered() -> None:
    x, y, z = A.with_id("x"), B.with_id("y"), C.with_id("z")
    assert said((x >> y).with_id("f"), (y >> x).with_id("f")) == ("reordered the parts of f",)
    # what was put in between reorders nothing
    assert said((x >> y).with_id("f"), (x >> z >> y).with_id("f")) == ("added f/z (agents c)",)


def test_which_savepoints_stay_valid() -> None:
    x, y = A.with_id("x"), B.with_id("y")
    old = (x >> y >> C).with_id("f")
    assert valid(old, (x >> bb.Respond() >> y >> C).with_id("f")) == "f/x, f/y"
    assert valid(old, (x >> y >> C >> bb.Respond()).with_id("f")) == "f/body~agents.2, f/x, f/y"
    assert valid(old, (bb.Flow() >> bb.All(x) >> C).with_id("f")) == "f/body~agents.2, f/body~all.1/x"
    assert valid(old, bb.All(A).with_id("g")) == "none"
    # an unnamed flow only while nothing in it has changed
    assert valid((A >> B).with_id("f"), (A >> C).with_id("f")) == "f/body~agents.0"
    # a named one whatever it holds now: its author vouches for it
    assert valid(x, C.with_id("x")) == "x"


def test_ids_that_are_not_unambiguous_match_nothing() -> None:
    x = A.with_id("x")
    old = (bb.All(x) >> bb.All(x)).with_id("f")
    new = (bb.All(x) >> bb.All(x) >> bb.Respond()).with_id("f")
    match = match_paths(tree(old), tree(new), {"f/body~all.0/x", "f/body~all.1/x"})
    assert match.kept == {}
    assert match.lost == ("f/body~all.0/x", "f/body~all.1/x")


@given(plots(max_leaves=5), plots(max_leaves=5))
@settings(max_examples=50)
def test_a_difference_says_what_changed_without_repeating_itself(one: Plot, two: Plot) -> None:
    old, new = one.durable(World()), two.durable(World())
    sentences = bb.structural_diff(old, new)
    assert len(set(sentences)) == len(sentences)
    if sentences:
        assert len(sentences) > 1, "a change of signature without a sentence that tells it"
