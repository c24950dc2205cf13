"""Cases 42 to 44 and 59 to 66: stages, what is delivered live, and what a resumed run delivers again."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable

import pytest

import bb
from bb.testing.scripted_model import ScriptedModel

Handler = Callable[[bb.Turn, bb.ModelChat], Awaitable[None]]


def leaf(*handlers: Handler) -> bb.Flow:
    return bb.Flow().with_agent(*(bb.Agent().on_message(handler) for handler in handlers))


def says(*texts: str) -> Handler:
    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        for text in texts:
            turn.reply(text)

    return handler


def streams(*pieces: str, granted: list[bool] | None = None) -> Handler:
    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        async with turn.stream() as out:
            if granted is not None:
                granted.append(bool(out))
            for piece in pieces:
                await out.write(piece)

    return handler


def picks(id: str) -> Handler:
    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        turn.select(id)

    return handler


async def chunks(flow: bb.AnyFlow, app: bb.App | None = None, run_id: str | None = None) -> list[str]:
    """What a streaming client gets, which is also the buffered answer."""
    async with (app or bb.App()).stream(flow, "hi", run_id=run_id) as stream:
        got = [chunk async for chunk in stream]
        assert "".join(got) == (await stream.outcome()).answer
        return got


async def collect(got: list[str], flow: bb.AnyFlow, app: bb.App | None = None, run_id: str | None = None) -> None:
    """Keeps what a streaming client got until the run ended or failed; the run goes on without it."""
    async with (app or bb.App()).stream(flow, "hi", run_id=run_id, detach=True) as stream:
        async for chunk in stream:
            got.append(chunk)  # noqa: PERF401 - what came before a failure counts


async def answer(flow: bb.AnyFlow) -> str:
    return (await bb.run(flow, "hi")).answer


def contents(outcome: bb.Outcome) -> list[str]:
    return [message.content for message in outcome.messages]


RESPOND = bb.Respond()


async def test_case_042_a_finished_run_answers_again_and_asks_nobody() -> None:
    model = ScriptedModel(["o", "ne"], ["t", "wo"], usage=bb.Usage(input=3))
    trace = bb.Recorder()
    app = bb.App(model=model, trace=trace)
    one = bb.Flow().with_agent(bb.Agent("one")).with_id("one")
    two = bb.Flow().with_agent(bb.Agent("two")).with_id("two")
    flow = (one >> RESPOND >> two >> RESPOND).with_id("f").durable()
    first = await app.run(flow, "hi", run_id="r-1")
    assert first.answer == "one\n\ntwo"
    assert first.usage == bb.Usage(input=6)

    trace.events.clear()
    again = await app.run(flow, "hi", run_id="r-1")
    assert (again.answer, again.messages, again.value) == (first.answer, first.messages, first.value)
    assert again.usage == bb.Usage()
    assert again.replayed == ("f/one", "f/two")
    assert trace.kinds() == ["run.resumed", "flow.cached", "respond", "flow.cached", "respond", "run.end"]
    assert await chunks(flow, app, "r-1") == ["one", "\n\ntwo"]
    assert len(model.requests) == 2


@pytest.mark.parametrize("streamed", [False, True])
async def test_case_043_the_stages_already_delivered_come_again_in_order(streamed: bool) -> None:
    calls: list[str] = []
    broken = [True]

    async def one(turn: bb.Turn, chat: bb.ModelChat) -> None:
        calls.append("one")
        await streams("one", " is", " told")(turn, chat)

    async def two(turn: bb.Turn, chat: bb.ModelChat) -> None:
        calls.append("two")
        if broken[0]:
            raise ValueError("crash")
        await streams("t", "wo")(turn, chat)

    app = bb.App()
    flow = (leaf(one) >> RESPOND >> leaf(two) >> RESPOND).with_id("f").durable()
    got: list[str] = []
    with pytest.raises(bb.AgentFailed, match="crash"):
        await (collect(got, flow, app, "r-1") if streamed else app.run(flow, "hi", run_id="r-1"))
    assert got == (["one", " is", " told"] if streamed else [])
    broken[0] = False
    assert "".join(await chunks(flow, app, "r-1")) == "one is told\n\ntwo"
    assert calls == ["one", "two", "two"]


async def test_case_043_a_replayed_stage_is_one_chunk_then_it_goes_on_live() -> None:
    broken = [True]

    async def two(turn: bb.Turn, chat: bb.ModelChat) -> None:
        if broken[0]:
            raise ValueError("crash")
        await streams("t", "wo")(turn, chat)

    app = bb.App()
    flow = (leaf(streams("o", "ne")) >> RESPOND >> leaf(two) >> RESPOND).with_id("f").durable()
    with pytest.raises(bb.AgentFailed):
        await app.run(flow, "hi", run_id="r-1")
    broken[0] = False
    assert await chunks(flow, app, "r-1") == ["one", "\n\n", "t", "wo"]
    assert await chunks(flow, app, "r-1") == ["one", "\n\ntwo"]


async def test_case_044_stages_are_neither_doubled_nor_lost_by_a_resume() -> None:
    """The client's own messages are no part of the answer, before and after a resume."""
    broken = [True]

    async def three(turn: bb.Turn, chat: bb.ModelChat) -> None:
        if broken[0]:
            raise ValueError("crash")
        turn.reply("three")

    earlier = [bb.Message("q"), bb.Message("old answer", "assistant"), bb.Message("hi")]
    app = bb.App()
    flow = (
        (leaf(says("one")) >> RESPOND >> leaf(says("two"), says("too")) >> RESPOND >> leaf(three) >> RESPOND)
        .with_id("f")
        .durable()
    )
    with pytest.raises(bb.AgentFailed):
        await app.run(flow, earlier, run_id="r-1")
    broken[0] = False
    outcome = await app.run(flow, earlier, run_id="r-1")
    assert outcome.answer == "one\n\ntwo\n\ntoo\n\nthree"
    assert contents(outcome) == ["one", "two", "too", "three"]


async def test_case_059_stages_are_delivered_in_order_and_joined_with_blank_lines() -> None:
    flow = leaf(says("one")) >> RESPOND >> leaf(says("two")) >> RESPOND >> leaf(says("three")) >> RESPOND
    assert await chunks(flow) == ["one", "\n\ntwo", "\n\nthree"]
    assert await answer(flow) == "one\n\ntwo\n\nthree"
    live = leaf(streams("o", "ne")) >> RESPOND >> leaf(streams("t", "wo")) >> RESPOND
    assert await chunks(live) == ["o", "ne", "\n\n", "t", "wo"]


@pytest.mark.parametrize("silent", [says(), says(""), streams(), streams("")])
async def test_case_059_a_silent_stage_leaves_no_trace(silent: Handler) -> None:
    for first, last in ((says("one"), says("three")), (streams("one"), streams("three"))):
        flow = leaf(first) >> RESPOND >> leaf(silent) >> RESPOND >> leaf(last) >> RESPOND
        assert "".join(await chunks(flow)) == "one\n\nthree"
        assert await answer(flow) == "one\n\nthree"
        assert "".join(await chunks(leaf(silent) >> RESPOND >> leaf(last) >> RESPOND)) == "three"
        assert "".join(await chunks(leaf(first) >> RESPOND >> leaf(silent) >> RESPOND)) == "one"


async def test_case_060_without_a_respond_the_last_message_is_the_answer() -> None:
    assert await answer(leaf(says("one")) >> leaf(says("two", "three"))) == "three"
    assert await chunks(leaf(says("one")) >> leaf(says("two", "three"))) == ["three"]
    assert await answer(leaf(says())) == ""  # never the client's own text
    assert await chunks(leaf(says())) == []


async def test_case_060_a_respond_over_nothing_answers_nothing() -> None:
    assert await answer(RESPOND) == ""
    assert await chunks(RESPOND) == []
    # what comes after the last Respond is said, but not delivered
    outcome = await bb.run(leaf(says("one")) >> RESPOND >> leaf(says("two")), "hi")
    assert outcome.answer == "one"
    assert contents(outcome) == ["one", "two"]
    assert await chunks(RESPOND >> leaf(streams("x"))) == []


async def test_case_061_who_may_stream() -> None:
    """The flow right before a `Respond`; and the last one of a run that has delivered nothing."""

    async def may(*order: str) -> str:
        """Letters stream, "|" is a Respond, "<" a named one; gives the letters that were granted."""
        granted: list[str] = []

        def asks(name: str) -> Handler:
            async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
                async with turn.stream() as out:
                    if out:
                        granted.append(name)

            return handler

        flow: bb.AnyFlow = bb.Notify(_nowhere)
        for name in order:
            steps: dict[str, bb.AnyFlow] = {"|": RESPOND, "<": RESPOND.with_id("out")}
            flow = flow >> steps.get(name, leaf(asks(name)))
        assert "".join(await chunks(flow)) == ""
        return "".join(granted)

    assert await may("a") == "a"
    assert await may("a", "b") == "b"
    assert await may("a", "b", "|") == "b"
    assert await may("a", "|", "b", "|") == "ab"
    assert await may("a", "|", "b") == "a"
    assert await may("|", "a") == ""
    assert await may("|", "a", "|") == "a"
    assert await may("a", "b", "<", "c", "d") == "b"
    assert await may("a", "|", "|", "b", "c", "|") == "ac"


async def _nowhere(text: str) -> None:
    pass


async def test_case_061_names_and_models_hide_nothing() -> None:
    granted: list[bool] = []
    a, b = (leaf(streams(text, granted=granted)) for text in "ab")
    named = (a.with_id("a") >> RESPOND.with_model(bb.FixedModel("")).with_id("out")).with_id("f").durable()
    assert await chunks(named) == ["a"]
    assert await chunks((a >> RESPOND).with_id("x") >> (b >> RESPOND).with_id("y").durable()) == ["a", "\n\n", "b"]
    assert granted == [True] * 3
    # the chain around it knows what follows
    assert await chunks((bb.Flow() >> a).with_id("x") >> RESPOND) == ["a"]
    assert await chunks((bb.Flow() >> a).with_id("x") >> b) == ["b"]
    assert granted[3:] == [True, False, True]


async def test_case_062_the_last_default_agent_streams_chunk_by_chunk() -> None:
    model = ScriptedModel(["dr", "aft"], ["an", "sw", "er"])
    app = bb.App(model=model)
    flow = (bb.Flow().with_agent(bb.Agent("draft")) >> bb.Flow().with_agent(bb.Agent("final"))).with_id("f")
    async with app.stream(flow, "hi") as stream:
        assert [chunk async for chunk in stream] == ["an", "sw", "er"]
        outcome = await stream.outcome()
    assert contents(outcome) == ["draft", "answer"]
    assert outcome.answer == outcome.value == "answer"


@pytest.mark.parametrize("end", [(), (RESPOND,), (RESPOND, RESPOND)])
async def test_case_062_text_arrives_while_it_is_made(end: tuple[bb.AnyFlow, ...]) -> None:
    heard = asyncio.Event()

    async def talks(turn: bb.Turn, chat: bb.ModelChat) -> None:
        async with turn.stream() as out:
            await out.write("first")
            await heard.wait()
            await out.write("second")

    flow: bb.AnyFlow = leaf(talks)
    for step in end:
        flow = flow >> step
    async with bb.App().stream(flow, "hi") as stream:
        text = aiter(stream)
        assert await anext(text) == "first"
        heard.set()
        assert await anext(text) == "second"


async def test_case_062_earlier_text_of_the_stage_goes_out_before_what_streams() -> None:
    granted: list[bool] = []

    async def both(turn: bb.Turn, chat: bb.ModelChat) -> None:
        turn.reply("two")
        await streams("thr", "ee", granted=granted)(turn, chat)

    flow = leaf(says("one")) >> leaf(both) >> RESPOND
    assert await chunks(flow) == ["one\n\ntwo\n\n", "thr", "ee"]
    assert await answer(flow) == "one\n\ntwo\n\nthree"
    # as the answer without a Respond only the last message counts
    assert await chunks(leaf(says("one")) >> leaf(both)) == ["thr", "ee"]
    assert granted == [True, False, True]


async def test_case_063_every_stage_may_stream_and_one_agent_in_each() -> None:
    granted: list[bool] = []

    async def twice(turn: bb.Turn, chat: bb.ModelChat) -> None:
        await streams("a", granted=granted)(turn, chat)
        await streams("b", granted=granted)(turn, chat)

    flow = leaf(twice) >> RESPOND >> leaf(streams("c", "d", granted=granted)) >> RESPOND
    assert "".join(await chunks(flow)) == "a\n\nb\n\ncd"
    assert granted == [True, False, True]


async def test_case_064_a_handler_that_fails_while_streaming_hangs_nothing() -> None:
    async def breaks(turn: bb.Turn, chat: bb.ModelChat) -> None:
        out = await turn.stream().__aenter__()  # never left
        await out.write("half")
        raise ValueError("broken")

    got: list[str] = []
    with pytest.raises(bb.AgentFailed, match="broken"):
        await collect(got, leaf(breaks) >> RESPOND)
    assert got == ["half"]


async def test_case_065_a_respond_inside_a_select_member_streams() -> None:
    target = bb.Select((leaf(streams("a", "b")) >> RESPOND >> leaf(says("c"))).with_id("x"))
    assert await chunks(leaf(picks("x")) >> target) == ["a", "b"]
    assert await chunks(leaf(picks("x")) >> RESPOND >> target) == ["a", "b"]
    member = bb.Select(leaf(streams("a", "b")).with_id("x"))
    assert await chunks(leaf(picks("x")) >> member >> RESPOND) == ["a", "b"]
    assert await chunks(leaf(picks("x")) >> member) == ["a", "b"]


async def test_case_066_a_respond_that_may_not_come_is_still_told_right() -> None:
    """A stage inside a member, with more to come outside: nothing is lost and nothing is said twice."""
    target = bb.Select((leaf(streams("one")) >> RESPOND).with_id("x"), leaf(says("quiet")).with_id("y"))
    for pick, said in (("x", "one"), ("y", "after")):
        flow = leaf(picks(pick)) >> target >> leaf(streams("after"))
        assert "".join(await chunks(flow)) == await answer(flow) == said
        whole = flow >> RESPOND
        assert "".join(await chunks(whole)) == await answer(whole) == ("one" if pick == "x" else "quiet") + "\n\nafter"


async def test_case_066_an_answer_that_was_streamed_cannot_be_replaced() -> None:
    async def again(turn: bb.Turn, chat: bb.ModelChat) -> None:
        await streams("one")(turn, chat)
        turn.reply("two")

    with pytest.raises(bb.WiringError, match="stream last"):
        await chunks(leaf(again))
    assert await chunks(leaf(again) >> RESPOND) == ["one", "\n\ntwo"]
    assert await answer(leaf(again)) == "two"  # nobody streams, so nothing is contradicted


async def test_case_066_messages_before_the_run_are_never_streamed() -> None:
    async with bb.App().stream(leaf(streams("new")) >> RESPOND, [bb.Message("old", "assistant")]) as stream:
        assert [chunk async for chunk in stream] == ["new"]


async def test_a_durable_retry_after_streamed_text_sends_the_listener_to_reconnect() -> None:
    class Clock(bb.SystemClock):
        async def sleep(self, seconds: float) -> None:
            await asyncio.sleep(0)

    tries: list[int] = []
    got: list[str] = []

    async def wavers(turn: bb.Turn, chat: bb.ModelChat) -> None:
        tries.append(1)
        async with turn.stream() as out:
            await out.write(f"try {len(tries)}")
            if len(tries) == 1:
                while "try 1" not in got:  # noqa: ASYNC110 - until the client has read it
                    await asyncio.sleep(0.001)
                raise ValueError("broken")

    app = bb.App(clock=Clock())
    flow = (leaf(says("stage")) >> RESPOND >> leaf(wavers) >> RESPOND).with_id("f").durable(retries=1)
    with pytest.raises(bb.StreamBroken, match="became void") as caught:
        await collect(got, flow, app, "r-1")
    assert got == ["stage", "\n\n", "try 1"]
    assert caught.value.run_id == "r-1"
    assert "".join(await chunks(flow, app, "r-1")) == "stage\n\ntry 2"
    assert len(tries) == 2


@pytest.mark.parametrize("first", [says("stage"), streams("stage")])
async def test_a_durable_retry_takes_back_no_stage_that_was_delivered(first: Handler) -> None:
    class Clock(bb.SystemClock):
        async def sleep(self, seconds: float) -> None:
            await asyncio.sleep(0)

    tries: list[int] = []
    got: list[str] = []

    async def wavers(turn: bb.Turn, chat: bb.ModelChat) -> None:
        tries.append(1)
        while not got:  # noqa: ASYNC110 - until the client has read it
            await asyncio.sleep(0.001)
        if len(tries) < 3:
            raise ValueError("broken")
        await streams("done")(turn, chat)

    flow = (leaf(first) >> RESPOND >> leaf(wavers) >> RESPOND).with_id("f").durable(retries=2)
    await collect(got, flow, bb.App(clock=Clock()))
    assert got == ["stage", "\n\n", "done"]
    assert len(tries) == 3


async def test_a_slow_reader_holds_the_writer_back() -> None:
    ahead: list[int] = []
    read = [0]

    async def pours(turn: bb.Turn, chat: bb.ModelChat) -> None:
        async with turn.stream() as out:
            for i in range(200):
                await out.write("x" * 4096)
                ahead.append(i + 1 - read[0])

    async with bb.App().stream(leaf(pours), "hi") as stream:
        async for _ in stream:
            read[0] += 1
            await asyncio.sleep(0)
    assert read[0] == 200
    assert max(ahead) <= 40  # 64 KiB, and the little that is under way


@pytest.mark.parametrize("durable", [False, True])
async def test_a_long_stream_costs_what_it_is_long(durable: bool) -> None:
    pieces, piece = 1600, "x" * 10_000

    async def pours(turn: bb.Turn, chat: bb.ModelChat) -> None:
        async with turn.stream() as out:
            for number in range(pieces):
                await out.write(piece)
                if number % 400 == 0:
                    assert out.text == piece * (number + 1)

    named = (leaf(pours) >> RESPOND).with_id("f")
    began = time.monotonic()
    async with bb.App().stream(named.durable() if durable else named, "hi") as stream:
        assert sum([len(chunk) async for chunk in stream]) == pieces * len(piece)
    assert time.monotonic() - began < 5  # copying all of it for each piece would take many times that


async def test_a_reader_that_leaves_interrupts_a_run_nobody_else_wants() -> None:
    ended: list[str] = []
    loud: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: loud.append(context))

    async def talks(turn: bb.Turn, chat: bb.ModelChat) -> None:
        try:
            async with turn.stream() as out:
                await out.write("a")
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async with bb.App().stream(leaf(talks), "hi") as stream:
        async for _ in stream:
            break
    assert ended == ["cancelled"]
    gc.collect()
    await asyncio.sleep(0)
    assert loud == []  # nothing is left for the garbage collector to complain about
