"""Laws 2, 3, 4 and 6 over generated flows of the language, which use every kind of node."""

from __future__ import annotations

import asyncio
import copy
from datetime import UTC
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

import bb
from bb.check.sites import sites
from bb.flows.refs import ref
from bb.flows.tree import KINDS, Bind, Each, Memo, Once, Return
from bb.ops import op
from bb.testing import MockStore
from bb.testing.explorer import Explorer
from bb.testing.process import CRASHES, Strike
from tests.laws.corpus import Clock
from tests.laws.language_plots import Plot, World, everything, known, plots
from tests.laws.test_resume_laws import NoKeeper, contents, told

SECONDS = 10.0  # a run that takes this long hangs


def app_over(store: bb.Store, *flows: bb.DurableFlow) -> bb.App:
    app = known(bb.App(store=store, clock=Clock()))
    app._runner.leases.keeper = NoKeeper(store, 30.0)
    app.register(*flows)  # what a trigger starts later is looked for there
    return app


async def tell(
    store: bb.Store, flow: bb.DurableFlow, plot: Plot, *, stream: bool = False
) -> tuple[str | None, bb.Outcome]:
    """What a process of its own reads: it runs the flow, and delivers each event once the flow waits for it."""
    app = app_over(store, flow)
    for number in range(len(plot.events) + 1):
        text, outcome = await once(app, flow, stream=stream)
        if outcome.waiting_for is None:
            return text, outcome
        source, payload = plot.events[number]
        await app.deliver(source, payload, session_id=outcome.session_id, delivery_id=f"event-{number}")
    raise AssertionError("it waits for more events than it has awaits")


async def once(app: bb.App, flow: bb.AnyFlow, *, stream: bool) -> tuple[str | None, bb.Outcome]:
    async with asyncio.timeout(SECONDS):
        if not stream:
            return None, await app.run(flow, "hi", run_id="r", session_id="s")
        async with app.stream(flow, "hi", run_id="r", session_id="s") as chunks:
            text = "".join([chunk async for chunk in chunks])
            return text, await chunks.outcome()


@given(plot=plots(), data=st.data())
@settings(max_examples=60)
def test_a_crash_at_any_append_changes_nothing(plot: Plot, data: st.DataObject) -> None:
    """Law 2: the same outcome, each effect at least once, and at most once more for the crash."""

    async def go() -> None:
        explorer = Explorer(
            plot.flow(World()),
            "hi",
            app=lambda store: known(bb.App(store=store, clock=Clock())),
            effects=None,
            params=None,
            events=plot.events,
            runs=1,
            fails=False,
            stream=data.draw(st.booleans(), "stream"),
            patience=SECONDS,
        )
        reference = await explorer.refer()
        appends = len(reference.lives[0].appended)
        strikes = st.builds(Strike, st.integers(1, appends), st.sampled_from(CRASHES))
        for strike in data.draw(st.lists(strikes, min_size=1, max_size=3), "strikes"):
            explorer.flow = plot.flow(World())  # what fails the first time does so in each story
            await explorer.tell(str(strike), strike, *data.draw(st.lists(strikes, max_size=1), "then"))
        explorer.verdict()

    asyncio.run(go())


def test_every_kind_of_node_is_among_them() -> None:
    assert {type(site.body) for site in sites(everything().flow(World()))} >= set(KINDS)


@given(plot=plots())
@example(plot=everything())
@settings(max_examples=40)
def test_streamed_equals_buffered(plot: Plot) -> None:
    """Law 3."""

    async def go() -> None:
        _, buffered = await tell(MockStore(), plot.flow(World()), plot)
        text, streamed = await tell(MockStore(), plot.flow(World()), plot, stream=True)
        assert text == streamed.answer == buffered.answer
        assert told(streamed) == told(buffered)

    asyncio.run(go())


@given(plot=plots())
@example(plot=everything())
@settings(max_examples=40)
def test_a_replay_executes_and_writes_nothing(plot: Plot) -> None:
    """Law 4."""

    async def go() -> None:
        store, world = MockStore(), World()
        _, outcome = await tell(store, plot.flow(world), plot)
        kept, appends, did = await contents(store), store.appends, world.did.copy()
        for other in (world, World()):  # the flow built again is the same flow
            done = other.did.copy()
            flow = plot.flow(other)
            text, replay = await once(app_over(store, flow), flow, stream=other is world)
            assert told(replay) == told(outcome) and replay.usage == bb.Usage()
            assert text in (None, outcome.answer)
            assert other.did == done
        assert (await contents(store), store.appends, world.did) == (kept, appends, did)

    asyncio.run(go())


# --- law 6 ----------------------------------------------------------------------------------------------------------

leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | st.datetimes(timezones=st.just(UTC))
    | st.timedeltas()
    | st.decimals(allow_nan=False)
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=4), inner, max_size=3)
        | st.frozensets(st.integers(), max_size=3)
    ),
    max_leaves=6,
)


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal, with equal types all the way down."""
    if type(one) is not type(other):
        return False
    match one:
        case dict():
            return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
        case list() | tuple():
            return len(one) == len(other) and all(map(same, one, other))
        case float():
            return one.hex() == bytes_of(other)
        case _:
            return bool(one == other)


def bytes_of(number: float) -> str:
    """A float exactly."""
    return number.hex()


def spoil(value: object) -> None:
    """Change everything in a value that can be changed."""
    match value:
        case list():
            for part in value:
                spoil(part)
            value.append("spoilt")
        case dict():
            for part in value.values():
                spoil(part)
            value["spoilt"] = True
        case tuple():
            for part in value:
                spoil(part)
        case _:
            pass


@given(value=values, literal=values)
@settings(max_examples=60)
def test_a_value_comes_back_equal_and_shared_with_nobody(value: Any, literal: Any) -> None:
    """Law 6: whatever an op does to what it is given or has given, nobody else sees it; and a replay sees the same."""
    given_out: list[Any] = []

    @op()
    async def give() -> Any:
        given_out.append(copy.deepcopy(value))
        return given_out[-1]

    @op()
    async def spoils(what: Any) -> None:
        spoil(what)

    made = copy.deepcopy(literal)
    name: Any = ref("x")
    flow = (
        Bind("x", give())
        >> Bind("l", made)
        >> spoils(what=name)
        >> spoils(what=ref("l"))
        >> Memo("m", give())
        >> spoils(what=ref("m"))
        >> Memo("n", give())
        >> Once("o", give(), bind="o")
        >> spoils(what=ref("o"))
        >> Each("i", [1, 2], give(), collect="c")
        >> spoils(what=ref("c"))
        >> Return([ref(symbol) for symbol in "xlmnoc"])
    )
    durable = flow.with_id("r").durable()
    spoil(made)
    right = [value, literal, value, value, value, [value, value]]

    async def go() -> None:
        store = MockStore()
        for _ in range(3):
            outcome = await app_over(store).run(durable, "hi", run_id="r")
            for one in given_out:
                spoil(one)
            assert isinstance(outcome.value, list)
            assert same(outcome.value, right)
            spoil(outcome.value)

    asyncio.run(go())
