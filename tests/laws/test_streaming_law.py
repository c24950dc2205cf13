"""Law 3: the streamed text, joined, is the buffered answer: for every shape of flow, with and without resume."""

from __future__ import annotations

import asyncio

from hypothesis import example, given, settings
from hypothesis import strategies as st

import bb
from tests.strategies import Beside, Boundary, Failure, Leaf, Named, Plot, Race, Route, Steps, Voice, World, plots

SECONDS = 10.0  # a run that takes this long hangs


async def read(app: bb.App, flow: bb.AnyFlow, run_id: str | None = None) -> tuple[str, bb.Outcome]:
    """A streamed run: the text that came, and the outcome."""
    async with asyncio.timeout(SECONDS), app.stream(flow, "hi", run_id=run_id) as stream:
        text = "".join([chunk async for chunk in stream])
        return text, await stream.outcome()


async def read_broken(app: bb.App, flow: bb.AnyFlow, run_id: str) -> tuple[str, Exception | None]:
    """A streamed run that may fail: the text that came until then, and the failure."""
    chunks: list[str] = []
    async with asyncio.timeout(SECONDS), app.stream(flow, "hi", run_id=run_id) as stream:
        try:
            async for chunk in stream:
                chunks.append(chunk)  # noqa: PERF401 - what came before the failure counts
        except bb.BBError as error:
            return "".join(chunks), error
    return "".join(chunks), None


async def buffered(flow: bb.AnyFlow) -> bb.Outcome:
    async with asyncio.timeout(SECONDS):
        return await bb.App().run(flow, "hi")


def told(outcome: bb.Outcome) -> tuple[object, ...]:
    return outcome.answer, outcome.messages, outcome.value


SHAPES = [
    # a buffered flow, then one that streams, in one stage
    Steps((Leaf(), Leaf((Voice("stream"),)), Boundary())),
    # a Respond inside a Select, and more after it
    Steps((Route((Steps((Leaf((Voice("stream"),)), Boundary())),)), Leaf((Voice("stream"),)))),
    # nothing delivered by a silent stage in the middle
    Steps((Leaf(), Boundary(), Leaf((Voice("silent"),)), Boundary(), Leaf((Voice("stream"),)), Boundary())),
    # a Respond that is never reached
    Steps((Leaf((Voice("stream"),)), Route((Boundary(),), None))),
    # text after the last Respond
    Steps((Leaf((Voice("stream"),)), Boundary(), Leaf((Voice("stream"),)))),
    # several agents, members of groups
    Steps((Leaf((Voice("stream"), Voice("stream"))), Boundary(), Beside("group", (Leaf((Voice("stream"),)),)))),
    Steps((Race(Leaf((Voice("stream"),)), ("fail",)), Boundary())),
    # separators that are part of a text, and empty ends
    Steps((Leaf((Voice("stream", "\n\n"),)), Boundary(), Leaf((Voice("stream", "\n\n"),)), Boundary())),
    # a call without text after text
    Steps((Leaf((Voice("stream"),)), Leaf((Voice("call"),)))),
    Leaf((Voice("reply, stream"),)),
    Named(Steps((Leaf((Voice("ask"),)), Boundary())), bb.DurableOptions()),
]


def shapes(test):  # type: ignore[no-untyped-def]
    """Shapes that are always tried."""
    for part in SHAPES:
        test = example(plot=Plot(part))(test)
    return test


@shapes
@given(plot=plots())
@settings(max_examples=150)
def test_streamed_equals_buffered(plot: Plot) -> None:
    async def go() -> None:
        outcome = await buffered(plot.flow(World()))
        streamed, same = await read(bb.App(), plot.flow(World()))
        assert streamed == same.answer == outcome.answer
        assert told(same) == told(outcome)

    asyncio.run(go())


@shapes
@given(plot=plots(max_leaves=6))
@settings(max_examples=75)
def test_a_finished_run_streams_its_answer_again(plot: Plot) -> None:
    async def go() -> None:
        app, world = bb.App(), World()
        flow = plot.durable(world)
        first, _ = await read(app, flow, "r-1")
        done = +world.calls, list(world.sent)
        again, outcome = await read(app, flow, "r-1")
        assert again == outcome.answer == first
        assert (+world.calls, world.sent) == done

    asyncio.run(go())


@given(plot=plots(max_leaves=6), data=st.data())
@settings(max_examples=150)
def test_a_resumed_run_streams_the_whole_answer(plot: Plot, data: st.DataObject) -> None:
    agents = plot.agents
    failing = data.draw(st.sampled_from(agents)) if agents else "nobody"
    first_streams = data.draw(st.booleans())

    async def go() -> None:
        calm = await buffered(plot.durable(World()))
        app, world = bb.App(), World()
        world.fails[failing] = 1
        flow = plot.durable(world)
        before = ""
        if first_streams:
            before, error = await read_broken(app, flow, "r-1")
            assert error is None or isinstance(error.__cause__, Failure | ExceptionGroup)
        else:
            try:
                async with asyncio.timeout(SECONDS):
                    await app.run(flow, "hi", run_id="r-1")
            except bb.AgentFailed:
                pass
        text, outcome = await read(app, flow, "r-1")
        assert text == outcome.answer == calm.answer
        assert text.startswith(before)
        assert told(outcome) == told(calm)

    asyncio.run(go())


@given(plot=plots(max_leaves=5, contradict=True), durable=st.booleans())
@settings(max_examples=100)
def test_an_agent_that_contradicts_its_stream_is_refused(plot: Plot, durable: bool) -> None:
    """Replying after having streamed the answer cannot be told to the client: it fails, and never differs in silence."""

    async def go() -> None:
        flow = plot.durable(World()) if durable else plot.flow(World())
        try:
            text, outcome = await read(bb.App(), flow)
        except bb.WiringError as error:
            assert "streamed" in str(error)
        else:
            assert text == outcome.answer

    asyncio.run(go())


@shapes
@given(plot=plots(max_leaves=5))
@settings(max_examples=50)
def test_late_listeners_get_the_whole_text(plot: Plot) -> None:
    """Two clients on one durable run read the same, though one of them came later."""

    async def go() -> None:
        app, world = bb.App(), World()
        flow = plot.durable(world)
        (one, first), (other, second) = await asyncio.gather(read(app, flow, "r-1"), read(app, flow, "r-1"))
        assert one == other == first.answer == second.answer
        assert all(count == 1 for count in world.calls.values())

    asyncio.run(go())
