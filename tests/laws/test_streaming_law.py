"""Law 3: the streamed text, joined, is the buffered answer: for every shape of flow, with and without resume."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TypeVar

from hypothesis import example, given, settings
from hypothesis import strategies as st

import bb
from bb.redaction import forget_secrets
from tests.strategies import Beside, Boundary, Failure, Leaf, Named, Part, Plot, Race, Route, Steps, Voice, World, plots

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


SECRETS = ["sekrit", "krit-and-more", "line\nbreak", "aaaa"]


@given(
    texts=st.lists(
        st.lists(st.sampled_from([*SECRETS, "sek", "rit", "-and", "-more", "line", "\n", "break", "aa", "."]))
    ),
    cuts=st.integers(1, 5),
    durable=st.booleans(),
)
@settings(max_examples=60)
def test_secrets_in_pieces_are_kept_out_of_the_stream_as_out_of_the_answer(
    texts: list[list[str]], cuts: int, durable: bool
) -> None:
    said = ["".join(pieces) for pieces in texts] or [""]

    async def talks(turn: bb.Turn, chat: bb.ModelChat) -> None:
        for text in said[:-1]:
            turn.reply(text)
        async with turn.stream() as out:
            for at in range(0, len(said[-1]), cuts):
                await out.write(said[-1][at : at + cuts])

    async def go() -> None:
        named = (bb.Flow().with_agent(bb.Agent().on_message(talks)) >> bb.Respond()).with_id("f")
        for flow in (named, named.body.steps[0].with_id("f")):  # type: ignore[union-attr]
            text, outcome = await read(bb.App(), flow.durable() if durable else flow)
            assert text == outcome.answer
            if durable:
                assert not any(secret in text for secret in SECRETS)

    for secret in SECRETS:
        bb.redact(secret)
    try:
        asyncio.run(go())
    finally:
        forget_secrets()


SHAPES: list[Part] = [
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


Test = TypeVar("Test", bound=Callable[..., None])


def shapes(test: Test) -> Test:
    """Shapes that are always tried."""
    for part in SHAPES:
        test = example(plot=Plot(part))(test)
    return test


@shapes
@given(plot=plots())
@settings(max_examples=60)
def test_streamed_equals_buffered(plot: Plot) -> None:
    async def go() -> None:
        outcome = await buffered(plot.flow(World()))
        streamed, same = await read(bb.App(), plot.flow(World()))
        assert streamed == same.answer == outcome.answer
        assert told(same) == told(outcome)

    asyncio.run(go())


@shapes
@given(plot=plots(max_leaves=6))
@settings(max_examples=50)
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
@settings(max_examples=60)
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
@settings(max_examples=60)
def test_an_agent_that_contradicts_its_stream_is_refused(plot: Plot, durable: bool) -> None:
    """Replying after having streamed the answer cannot be told to the client: it fails, and never differs in silence."""

    async def go() -> None:
        flow = plot.durable(World()) if durable else plot.flow(World())
        with contextlib.suppress(bb.WiringError):
            text, outcome = await read(bb.App(), flow)
            assert text == outcome.answer

    asyncio.run(go())


class Hasty(bb.SystemClock):
    """A clock that does not sleep."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


@given(plot=plots(max_leaves=6), data=st.data())
@settings(max_examples=60)
def test_a_retry_tells_the_same_or_sends_the_client_to_reconnect(plot: Plot, data: st.DataObject) -> None:
    agents = plot.agents
    failing = data.draw(st.sampled_from(agents)) if agents else "nobody"

    async def go() -> None:
        calm = await buffered(plot.durable(World()))
        app, world = bb.App(clock=Hasty()), World()
        world.fails[failing] = 1
        flow = plot.durable(world, retries=1)
        text, error = await read_broken(app, flow, "r-1")
        if error is None:
            assert text == calm.answer
        else:
            assert isinstance(error, bb.StreamBroken)
            assert error.run_id == "r-1"
        again, outcome = await read(app, flow, "r-1")
        assert again == outcome.answer == calm.answer

    asyncio.run(go())


@shapes
@given(plot=plots(max_leaves=5))
@settings(max_examples=25)
def test_all_callers_of_a_run_get_the_whole_text(plot: Plot) -> None:
    """One waits for the outcome, one streams, one comes later and streams too."""

    async def go() -> None:
        app, world = bb.App(), World()
        flow = plot.durable(world)
        first = asyncio.ensure_future(app.run(flow, "hi", run_id="r-1"))
        one = asyncio.ensure_future(read(app, flow, "r-1"))
        await asyncio.sleep(0)
        other, outcome = await read(app, flow, "r-1")
        assert (await one)[0] == other == (await first).answer == outcome.answer
        assert all(count == 1 for count in world.calls.values())

    asyncio.run(go())
