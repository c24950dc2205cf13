"""Trials A: odd values through the savepoints of a run."""

from __future__ import annotations

import enum
import socket
import threading
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

import bb
from bb.agents.answer import Answer
from bb.engine.outcome import Delivery, SessionTurn
from bb.testing.mock_store import MockStore
from tests.trials.kit import Disk, Work, contents, disk_of, mocked
from tests.unit.codec_values import (
    VALUES,
    Bits,
    Effects,
    Hashed,
    Level,
    Money,
    Outer,
    Pair,
    Perm,
    Point,
    Shade,
    Tone,
    same,
)

KEPT = [Outer, Hashed, Point, Effects, Pair, Tone, Shade, Level, Perm, Bits]


def known(app: bb.App) -> bb.App:
    """The app, with the classes of the odd values registered."""
    app.types.register(*KEPT)
    app.types.register(Money, dump=lambda money: {"cents": money.cents}, load=lambda plain: Money(plain["cents"]))
    return app


def leaf(name: str, handler: Callable[[bb.Turn], Any]) -> bb.NamedFlow:
    async def call(turn: bb.Turn, chat: bb.ModelChat) -> None:
        await handler(turn)

    return bb.Flow().with_agent(bb.Agent(name).on_message(call)).with_id(name)


async def test_trial_A1_a_value_is_the_same_on_the_first_run_and_on_each_replay(disk: Disk) -> None:
    # A1, A2, A4, A5, A10, A16, A26: each value as a result, and as that of a step inside a handler
    calls: list[int] = []

    def odd(index: int) -> bb.DurableFlow:
        async def handler(turn: bb.Turn) -> None:
            calls.append(index)
            stepped = await turn.step("odd", lambda: VALUES[index])
            assert same(stepped, VALUES[index]), f"step result {VALUES[index]!r} came back as {stepped!r}"
            if calls.count(index) == 1:
                raise ValueError("crash after the step")
            turn.reply("odd", value=[stepped])  # a bare None means the text

        return leaf(f"odd{index}", handler).durable(retries=0)

    app = known(disk.app())
    for index, value in enumerate(VALUES):
        with pytest.raises(bb.AgentFailed, match="crash after the step"):
            await app.run(odd(index), "hi", run_id=f"r{index}")
        first = await app.run(odd(index), "hi", run_id=f"r{index}")
        assert same(first.value, [value]), f"{value!r} was handed on as {first.value!r}"

    cold = known(disk.app())
    for index, value in enumerate(VALUES):
        again = await cold.run(odd(index), "hi", run_id=f"r{index}")
        assert again.replayed == (f"odd{index}",)
        assert same(again.value, [value]), f"{value!r} was replayed as {again.value!r}"


async def test_trial_A7_a_class_that_is_gone_is_an_error_and_never_a_dict(disk: Disk, work: Work) -> None:
    flow = work.flow("a").next(work.flow("b")).with_id("job").durable()
    work.values["a"] = Point(1, 2)
    work.fail("b", 1)
    with pytest.raises(bb.AgentFailed):
        await known(disk.app(flow)).run("job", "hi", run_id="r")

    with pytest.raises(bb.CorruptRecord) as raised:
        await disk.app(flow).run("job", "hi", run_id="r")

    assert "Point" in str(raised.value) and raised.value.path == "job/a" and "register" in str(raised.value)
    assert work.calls == ["a", "b"]
    assert (await known(disk.app(flow)).run("job", "hi", run_id="r")).replayed == ("job/a",)


def public_values() -> list[object]:
    """One of each public class whose values a handler may come to hold."""
    call = bb.ToolCall("c", "t", "{}")
    now = datetime(2024, 1, 1, tzinfo=UTC)
    usage = bb.Usage(1, 2)
    outcome = bb.Outcome("a", (bb.Message("a", "assistant"),), {"x": (1,)}, usage, "r", "s", ("p",))
    return [
        bb.Message("hi", "user", (call,), (bb.ToolResult("c", "x"),)),
        call,
        bb.ToolResult("c", "x", True),
        bb.ToolSpec("t", "d", {"type": "object"}),
        bb.Request("m", temperature=0.5),
        bb.Input((bb.Message("hi"),), payload={"p": {1}}),
        usage,
        bb.Event("flow.end", "r", "p", now, usage=usage),
        outcome,
        bb.RunInfo("r", "f", "finished", 1, now, now),
        SessionTurn("Which day?", "user", outcome, "t1"),
        Delivery("d1", ("r", "f/body~await.0")),
        bb.Fired("r", "a"),
        bb.JobInfo("at:1", "f", "at", "f/body~at.0", now),
        bb.Problem("code", "message", "path"),
        Answer(bb.Message("a", "assistant"), usage),
    ]


async def test_trial_A10_what_the_library_hands_out_can_be_saved(disk: Disk) -> None:
    values = public_values()
    told = {type(value) for value in values}
    # what a program is built of, and what only models and stores see, is no result
    other = {"Agent", "Doc", "DurableOptions", "Lease", "ModelRequest", "Schema", "StreamInfo", "Tool"}
    other |= {"Expr", "Field", "Format", "List_", "Lit", "Obj", "Param", "Parse", "Step", "Var"}
    other |= {"AllowAll", "Approval", "AskOnTerminal", "ByRisk", "Catalogue", "Decision", "DenyAll"}
    other |= {"Op", "Policy", "Proposed", "Viewed"}
    exported = [getattr(bb, name) for name in bb.__all__ if name not in other]
    plain = {cls for cls in exported if isinstance(cls, type) and attrs.has(cls) and not hasattr(cls, "next")}
    assert plain <= told, f"not tried: {sorted(cls.__name__ for cls in plain - told)}"

    async def handler(turn: bb.Turn) -> None:
        turn.reply("all", value=values)

    app = disk.app(leaf("all", handler).durable())
    assert (await app.run("all", "hi", run_id="r")).value == values
    assert (await disk.app(leaf("all", handler).durable()).run("all", "hi", run_id="r")).value == values


class Unsavable(enum.Enum):
    MODULE = "module"
    LOCK = "lock"
    SOCKET = "socket"
    FILE = "TextIOWrapper"
    LAMBDA = "function"
    CLIENT = "Client"
    GENERATOR = "generator"
    STREAM = "async_generator"
    MAP = "map"
    EXCEPTION = "ValueError"
    CLASS = "type"


class Client:
    """Something that is bound to this process."""


async def _stream() -> Any:
    yield 1


def _make(kind: Unsavable, held: ExitStack, directory: Path) -> object:
    match kind:
        case Unsavable.MODULE:
            return socket
        case Unsavable.LOCK:
            return threading.Lock()
        case Unsavable.SOCKET:
            return held.enter_context(socket.socket())
        case Unsavable.FILE:
            return held.enter_context((directory / "open").open("w"))
        case Unsavable.LAMBDA:
            return lambda: 1
        case Unsavable.CLIENT:
            return Client()
        case Unsavable.GENERATOR:
            return (n for n in range(3))
        case Unsavable.STREAM:
            return _stream()
        case Unsavable.MAP:
            return map(str, [1])
        case Unsavable.EXCEPTION:
            return ValueError("x")
        case Unsavable.CLASS:
            return Client


@pytest.mark.parametrize("kind", Unsavable)
@pytest.mark.parametrize("where", ["result", "step"])
@pytest.mark.parametrize("store", ["memory", "file", "mock"])
async def test_trial_A11_what_cannot_be_saved_is_named_at_once_by_every_store(
    tmp_path: Path, work: Work, kind: Unsavable, where: str, store: str
) -> None:
    # A11, A28, A31, A32: one verdict in all stores, at the first save, and no retry
    calls: list[str] = []
    with ExitStack() as held:

        async def handler(turn: bb.Turn) -> None:
            calls.append(where)
            value = {"x": [_make(kind, held, tmp_path)]}
            if where == "step":
                await turn.step("make", lambda: value)
            turn.reply("made", value=value)

        flow = work.flow("a").next(leaf("b", handler)).with_id("job").durable(retries=4)
        async with disk_of(store, tmp_path) as disk:
            app = mocked(MockStore(), flow) if store == "mock" else disk.app(flow)
            with pytest.raises((bb.NotSavable, bb.AgentFailed)) as raised:
                await app.run("job", "hi", run_id="r")
            error = raised.value if isinstance(raised.value, bb.NotSavable) else raised.value.__cause__
            assert isinstance(error, bb.NotSavable)
            assert kind.value in str(error) and '["x"][0]' in str(error)
            assert error.path == "job/b" and error.remedy
            assert calls == [where]

            calls.clear()
            with pytest.raises((bb.NotSavable, bb.AgentFailed)):
                await app.run("job", "hi", run_id="r")
            assert calls == [where] and work.calls == ["a"]  # the savepoint before it is intact


ARRAYS = {
    "structured": np.array([(1, 2.5), (2, -0.0)], dtype=[("n", "i4"), ("x", "f8")]),
    "object": np.array([{}, [1]], dtype=object),
    "sliced": np.arange(10)[::2],
    "number": np.float64(1.5),
    "text": np.str_("a"),
    "date": np.datetime64("2024-01-01"),
}


@pytest.mark.parametrize("array", ARRAYS.values(), ids=list(ARRAYS))
async def test_trial_A8_an_array_is_refused_when_it_is_saved(disk: Disk, work: Work, array: object) -> None:
    """Also numbers and texts of NumPy, which are subclasses of Python's: they would come back as those."""
    work.values["a"] = [array]
    flow = work.flow("a").with_id("job").durable(retries=3)
    with pytest.raises(bb.NotSavable, match=r"value\[0\] is a numpy\.\w+, .*tolist") as raised:
        await disk.app(flow).run("job", "hi", run_id="r")
    assert "job" in str(raised.value) and work.calls == ["a"]


async def test_trial_A8_a_registered_array_comes_back_equal_and_writable(disk: Disk, work: Work) -> None:
    work.values["a"] = ARRAYS["sliced"]
    flow = work.flow("a").with_id("job").durable()
    for replayed in ((), ("job",)):
        app = disk.app(flow)
        app.types.register(np.ndarray, dump=lambda array: array.tolist(), load=np.array)
        outcome = await app.run("job", "hi", run_id="r")
        array: Any = outcome.value
        assert outcome.replayed == replayed and array.tolist() == [0, 2, 4, 6, 8]
        array[0] = 9  # writable, and nobody else's
    assert work.calls == ["a"]


class Odd(Exception):
    """An exception that cannot be made again from its arguments."""

    def __init__(self, code: int, *, detail: str) -> None:
        super().__init__(code)
        self.detail = detail

    def __str__(self) -> str:
        return f"odd {self.args[0]}: {self.detail}"


async def test_trial_A13_an_exception_of_any_make_can_be_looked_at_and_tried_again(disk: Disk, work: Work) -> None:
    flow = work.flow("a").next(work.flow("b")).with_id("job").durable()
    work.fail("b", Odd(7, detail="wet"))
    with pytest.raises(bb.AgentFailed) as raised:
        await disk.app(flow).run("job", "hi", run_id="r")
    assert isinstance(raised.value.__cause__, Odd) and raised.value.__cause__.detail == "wet"

    app = disk.app(flow)  # another process
    (run,) = await app.runs()
    assert run.status == "failed" and "Odd" in run.error and "odd 7: wet" in run.error and "job/b" in run.error
    assert any("odd 7: wet" in event.detail for event in await app.events("r"))
    assert (await app.run("job", "hi", run_id="r")).replayed == ("job/a",)  # the failure is no result


@pytest.mark.parametrize("part", ["payload", "metadata", "params"])
async def test_trial_A23_an_input_that_cannot_be_saved_fails_once_with_its_name(
    disk: Disk, work: Work, part: str
) -> None:
    app = disk.app(work.flow("a").durable(retries=5))
    given = bb.Input(
        (bb.Message("hi"),),
        payload=Client() if part == "payload" else None,
        metadata={"m": Client()} if part == "metadata" else {},
    )
    params = {"p": Client()} if part == "params" else None

    for _ in range(2):
        with pytest.raises(bb.NotSavable, match="Client"):
            await app.run("a", given, params=params, run_id="r")
        with pytest.raises(bb.NotSavable, match="Client"):
            await app.submit("a", given, params=params, run_id="job")

    assert work.calls == [] and await contents(app.store) == {}
    assert (await app.run("a", "hi", run_id="r")).answer == "a"  # the id is not spoilt
