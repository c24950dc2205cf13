"""The safety envelope: authorise, approve, execute, redact."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import ContextVar
from decimal import Decimal
from typing import Any

import attrs
import pytest
from structlog.testing import capture_logs

import bb
from bb.engine.frame.envelope import Envelope, OpResult, arguments_of, refused
from bb.engine.values.evaluation import evaluate
from bb.errors import ApproverFailed, Denied, Fatal, Interrupted, OpFailed, WiringError, is_fatal, root_of
from bb.flows.calls import Call
from bb.flows.expressions import Lit, Obj, Var
from bb.ops import Op, Viewed, catalogue, op
from bb.policy import AllowAll, Approval, ByRisk, Decision, DenyAll, Policy


@op("calendar.read", effects=["read"])
async def read(day: str, limit: int = 10) -> str:
    return f"{day}: {limit}"


@op("bank.pay", effects=["money", "send_external"], risk="high")
async def pay(to: str, amount: Decimal) -> str:
    return f"{to} has {amount}"


@op()
def now() -> str:
    return "now"


OPS = catalogue([read, pay, now])


def op_of(fn: Callable[..., object]) -> Op[Any, Any]:
    return op("some.op")(fn)


# --- authorise ---


@pytest.mark.parametrize(
    ("envelope", "tools", "says"),
    [
        (Envelope(OPS), None, None),
        (Envelope(OPS), frozenset({"bank.pay", "now"}), None),
        (Envelope(OPS), frozenset({"now"}), "only some ops may run here: now"),
        (Envelope(OPS), frozenset(), "only some ops may run here: none"),
        (Envelope(OPS, Policy(deny=["bank.*"])), None, "the policy denies bank.*"),
        (Envelope(OPS, Policy(["calendar.*"])), frozenset({"bank.pay"}), "the policy allows no such op"),
    ],
)
def test_authorise(envelope: Envelope, tools: frozenset[str] | None, says: str | None) -> None:
    denied: Denied | None = None
    try:
        envelope.authorise("bank.pay", pay, tools, flow="root", path="root/pay")
    except Denied as error:
        denied = error
    assert (None if denied is None else denied.message.removeprefix("op bank.pay was denied: ")) == says
    assert denied is None or (denied.flow, denied.path) == ("root", "root/pay")


def test_an_unknown_op_is_denied() -> None:
    envelope = Envelope(OPS)
    assert envelope.op(Call("bank.rob")) is None
    assert envelope.op(Call("bank.pay")) is pay
    with pytest.raises(Denied, match=r"op bank\.rob was denied: there is no op of that name"):
        envelope.authorise("bank.rob", None, None)


def test_the_op_itself_is_authorised_not_what_the_call_says_it_is() -> None:
    disguised = Call("calendar.read", bound=pay)
    envelope = Envelope(OPS, Policy(["calendar.*"]))
    with pytest.raises(Denied, match=r"bank\.pay"):
        envelope.authorise(disguised.op, envelope.op(disguised), frozenset({"calendar.read"}))


@pytest.mark.parametrize(
    ("envelope", "op", "tools", "remedy"),
    [
        (Envelope(OPS), None, None, "register it: App(ops=[...])"),
        (Envelope(OPS, Policy(deny=["*"])), pay, None, "change App(policy=...), if it is to run"),
        (Envelope(OPS, Policy([])), pay, None, "change App(policy=...), if it is to run"),
        (Envelope(OPS), pay, frozenset(["now"]), "name it in every WithTools around it"),
    ],
)
def test_each_denial_has_a_remedy_of_its_own(
    envelope: Envelope, op: Op[Any, Any] | None, tools: frozenset[str] | None, remedy: str
) -> None:
    with pytest.raises(Denied) as denied:
        envelope.authorise("bank.pay", op, tools)
    assert denied.value.remedy == remedy


def test_after_a_no_the_approver_can_be_asked_again() -> None:
    denied = refused(pay, Decision.deny("not today"), flow="f", path="f/x")
    assert (denied.message, denied.flow, denied.path) == ("op bank.pay was denied: not today", "f", "f/x")
    assert denied.remedy == "run it again, and App(approver=...) is asked again"


# --- approve ---


class Asked:
    """An approver that does what it is told, and keeps what it was asked."""

    def __init__(self, answer: object = None) -> None:
        self.answer = answer
        self.requests: list[Approval] = []

    async def approve(self, request: Approval, /) -> Decision:
        self.requests.append(request)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer  # type: ignore[return-value]  # some tests answer with nonsense


PAY: dict[str, object] = {"to": "Ada", "amount": Decimal(5)}


async def test_nobody_is_asked_by_default() -> None:
    assert not Envelope(OPS).needs_approval(pay)
    assert await Envelope(OPS).approve([(pay, PAY)], "r", "p") == Decision.allow()


def test_who_has_to_be_asked() -> None:
    assert not Envelope(OPS, approver=AllowAll()).needs_approval(pay)
    assert not Envelope(OPS, approver=ByRisk()).needs_approval(read)
    assert Envelope(OPS, approver=ByRisk()).needs_approval(pay)
    assert Envelope(OPS, approver=DenyAll()).needs_approval(read)
    assert Envelope(OPS, approver=Asked()).needs_approval(read)


async def test_one_question_about_all_calls() -> None:
    approver = Asked(Decision.allow())
    assert await Envelope(OPS, approver=approver).approve([(pay, PAY), (now, {})], "r-1", "root/x") == Decision.allow()
    [request] = approver.requests
    assert (request.run_id, request.path) == ("r-1", "root/x")
    first, second = request.calls
    assert (first.op, first.risk, first.effects) == ("bank.pay", "high", ("money", "send_external"))
    assert first.arguments == {"to": "Ada", "amount": "5"}
    assert (second.op, second.arguments) == ("now", {})


async def test_nothing_to_approve_is_approved() -> None:
    approver = Asked(Decision.deny("no"))
    assert (await Envelope(OPS, approver=approver).approve([], "r", "p")).allowed
    assert approver.requests == []


@attrs.define
class Card:
    number: str
    tags: list[str]


async def test_an_approver_sees_no_secret_and_cannot_change_what_will_run() -> None:
    bb.redact("4111-1111")
    card = Card("4111-1111", ["4111-1111 x"])
    arguments: dict[str, object] = {"card": card, "all": [{"4111-1111": ("4111-1111",)}], "n": 1}
    approver = Asked(Decision.allow())
    await Envelope(OPS, approver=approver).approve([(pay, arguments)], "r", "p")
    shown: Any = approver.requests[0].calls[0].arguments
    assert "4111" not in str(dict(shown))
    assert shown["card"] == {"number": "[redacted]", "tags": ["[redacted] x"]}
    assert shown["n"] == 1
    shown["card"]["tags"].clear()
    shown["all"].clear()
    assert card == Card("4111-1111", ["4111-1111 x"])
    assert arguments["all"] == [{"4111-1111": ("4111-1111",)}]


async def test_a_denial_has_its_reason() -> None:
    bb.redact("sesame-sesame")
    approver = Asked(Decision.deny("he said sesame-sesame"))
    decision = await Envelope(OPS, approver=approver).approve([(pay, PAY)], "r", "p")
    assert decision == Decision.deny("he said [redacted]")


@pytest.mark.parametrize(
    ("answer", "says", "fatal"),
    [
        (ValueError("out of order"), "the approver failed: ValueError: out of order", False),
        (KeyError(), "the approver failed: KeyError", False),
        (asyncio.CancelledError(), "the approver failed: CancelledError", False),
        (Fatal("nobody works here"), "the approver failed: Fatal: nobody works here", True),
        (True, "the approver failed: WiringError: it answered with True, which is no Decision", True),
        (None, "the approver failed: WiringError: it answered with None, which is no Decision", True),
    ],
)
async def test_an_approver_that_fails_has_said_neither_yes_nor_no(answer: object, says: str, fatal: bool) -> None:
    with capture_logs() as logs, pytest.raises(ApproverFailed) as failed:
        await Envelope(OPS, approver=Asked(answer)).approve([(pay, PAY)], "r", "p/approval#1", flow="f", path="p")
    assert (failed.value.message, failed.value.flow, failed.value.path) == (says, "f", "p")
    assert is_fatal(failed.value) is fatal
    assert root_of(failed.value) is failed.value.__cause__
    assert [(log["log_level"], log["run_id"], log["path"]) for log in logs] == [("warning", "r", "p/approval#1")]
    assert says.endswith(logs[0]["error"])


async def test_what_a_failing_approver_says_has_no_secret() -> None:
    bb.redact("sesame-sesame")
    with capture_logs() as logs, pytest.raises(ApproverFailed) as failed:
        await Envelope(OPS, approver=Asked(ValueError("bad token sesame-sesame"))).approve([(pay, PAY)], "r", "p")
    assert "bad token [redacted]" in failed.value.message
    assert "sesame" not in str(logs)


async def test_an_interruption_is_no_denial() -> None:
    with pytest.raises(Interrupted):
        await Envelope(OPS, approver=Asked(Interrupted("shut down"))).approve([(pay, PAY)], "r", "p")


class Slow:
    async def approve(self, request: Approval, /) -> Decision:
        await asyncio.sleep(3600)
        return Decision.allow()


async def test_cancelled_while_asking_stays_cancelled() -> None:
    task = asyncio.ensure_future(Envelope(OPS, approver=Slow()).approve([(pay, PAY)], "r", "p"))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# --- execute ---

WHERE: ContextVar[str] = ContextVar("WHERE")


async def test_an_async_op_runs_here_and_a_plain_one_in_a_thread_with_its_context() -> None:
    def plain() -> tuple[str, bool]:
        return WHERE.get(), threading.current_thread() is threading.main_thread()

    async def here() -> tuple[str, bool]:
        return plain()

    WHERE.set("test")
    assert (await Envelope(OPS).execute(op_of(plain), {})).value == ("test", False)
    assert (await Envelope(OPS).execute(op_of(here), {})).value == ("test", True)


async def test_arguments_go_by_name() -> None:
    assert await Envelope(OPS).execute(read, {"limit": 1, "day": "mon"}) == OpResult("mon: 1")


async def test_a_view_is_unpacked() -> None:
    result = await Envelope(OPS).execute(op_of(lambda: Viewed([1], "one thing")), {})
    assert result == OpResult([1], "one thing")


async def test_texts_are_redacted() -> None:
    bb.redact("sesame-sesame")
    envelope = Envelope(OPS)
    assert (await envelope.execute(op_of(lambda: "x sesame-sesame"), {})).value == "x [redacted]"
    result = await envelope.execute(op_of(lambda: Viewed("sesame-sesame", "is sesame-sesame")), {})
    assert result == OpResult("[redacted]", "is [redacted]")


async def cancelled_inside() -> None:
    task = asyncio.ensure_future(asyncio.sleep(3600))
    task.cancel()
    await task


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (Mute(), "op some.op failed: Mute: <exception str() failed>"),
        (ValueError("no such day"), "op some.op failed: ValueError: no such day"),
        (RuntimeError(), "op some.op failed: RuntimeError"),
        (Fatal("give up", remedy="go home"), "op some.op failed: Fatal: give up"),
    ],
)
async def test_what_an_op_raises_is_a_failure_of_the_op(error: Exception, says: str) -> None:
    def fails() -> None:
        raise error

    async def fails_too() -> None:
        raise error

    for fn in (fails, fails_too):
        with pytest.raises(OpFailed) as failed:
            await Envelope(OPS).execute(op_of(fn), {}, flow="root", path="root/x")
        assert failed.value.message == says
        assert (failed.value.flow, failed.value.path) == ("root", "root/x")
        assert failed.value.__cause__ is error
        assert is_fatal(failed.value) is isinstance(error, Fatal)
        assert failed.value.remedy == ("go home" if isinstance(error, Fatal) else "")


@pytest.mark.parametrize("error", [Interrupted("shut down"), Denied("not that")])
async def test_an_interruption_or_a_denial_passes_as_it_is(error: Exception) -> None:
    def raises() -> None:
        raise error

    with pytest.raises(type(error)) as passed:
        await Envelope(OPS).execute(op_of(raises), {})
    assert passed.value is error


async def test_a_cancellation_of_the_ops_own_is_a_failure() -> None:
    with pytest.raises(OpFailed, match="CancelledError"):
        await Envelope(OPS).execute(op_of(cancelled_inside), {})


async def test_a_cancelled_op_stays_cancelled() -> None:
    async def slow() -> None:
        await asyncio.sleep(3600)

    task = asyncio.ensure_future(Envelope(OPS).execute(op_of(slow), {}))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_failure_tells_no_secret() -> None:
    bb.redact("sesame-sesame")

    def fails() -> None:
        raise ValueError("bad key sesame-sesame")

    with pytest.raises(OpFailed) as failed:
        await Envelope(OPS).execute(op_of(fails), {})
    assert "sesame" not in str(failed.value)


# --- arguments ---


@op()
def several(a: int, b: int) -> None: ...


@op()
def optional_only(a: int = 1) -> None: ...


@op()
def two_optional(a: int = 1, b: int = 2) -> None: ...


@pytest.mark.parametrize(
    ("of", "call", "arguments"),
    [
        (now, Call("now"), {}),
        (read, Call("r", (Obj({"day": Var("x"), "limit": Lit(3)}),)), {"day": "mon", "limit": 3}),
        (read, Call("r", (Lit({"day": "{x}"}),)), {"day": "mon"}),
        (read, Call("r", (Var("x"),)), {"day": "mon"}),
        (read, Call("r", (Lit("tue"),)), {"day": "tue"}),
        (read, Call("r", (Var("record"),)), {"day": {"limit": 1}}),  # only what stands there as a record is one
        (optional_only, Call("o", (Lit(5),)), {"a": 5}),
        (optional_only, Call("o"), {}),
        (two_optional, Call("o", (Lit({"b": 5}),)), {"b": 5}),
    ],
)
def test_arguments(of: Op[Any, Any], call: Call[Any], arguments: dict[str, object]) -> None:
    symbols = {"x": "mon", "record": {"limit": 1}}
    assert arguments_of(call, of, [evaluate(value, symbols) for value in call.args]) == arguments


@pytest.mark.parametrize(
    ("of", "args", "says"),
    [
        (read, (), "op calendar.read lacks the argument day"),
        (several, (Lit({}),), "op several lacks the argument a, b"),
        (several, (Lit(1),), "op several was given an argument without a name"),
        (two_optional, (Lit(1),), "op two_optional was given an argument without a name"),
        (now, (Lit(1),), "op now was given an argument without a name"),
        (now, (Lit({"x": 1}),), "op now has no argument 'x'"),
        (read, (Lit({"day": "mon", "Limit": 1}),), "op calendar.read has no argument 'Limit'"),
        (read, (Lit({1: 2}),), "op calendar.read has no argument 1"),
        (several, (Lit(1), Lit(2)), "op several was given several arguments without names"),
    ],
)
def test_arguments_that_do_not_fit(of: Op[Any, Any], args: tuple[Any, ...], says: str) -> None:
    call: Call[Any] = Call(of.name, args)
    with pytest.raises(WiringError) as refused:
        arguments_of(call, of, [evaluate(value, {}) for value in args], flow="root", path="root/x")
    assert says in refused.value.message
    assert str(of.signature) in refused.value.remedy
    assert (refused.value.flow, refused.value.path) == ("root", "root/x")


def test_the_arguments_are_a_mapping_of_their_own() -> None:
    call: Call[Any] = Call("r", (Lit({"day": "mon"}),))
    given = {"day": "mon"}
    assert arguments_of(call, read, [given]) is not given
