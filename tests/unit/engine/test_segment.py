"""What a model stage does with the calls of its model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

import bb
from bb.engine.steps.segment import PROPOSED, is_filled
from bb.errors import Denied, InvalidValue, OpFailed, Throttled
from bb.flows.expressions import Format, Var
from bb.flows.tree import AiSegment, Bind, Each, Return, Throttle
from bb.messages import ToolCall, ToolResult
from bb.ops import Op, op
from bb.policy import Approval, ByRisk, Decision, DenyAll, Policy
from bb.testing import Crash, ManualClock, MockStore, ScriptedModel
from tests.trials.kit import Disk, Hold, cut_off, mocked

calls: list[str]


@pytest.fixture(autouse=True)
def fresh_calls() -> None:
    global calls  # noqa: PLW0603 - one list per test
    calls = []


@op(effects=["read"])
async def look(at: str) -> str:
    calls.append(f"look {at}")
    if at == "nowhere":
        raise ValueError("there is nothing")
    if at == "the end":
        raise bb.Fatal("stop here")
    return f"saw {at}"


@op(effects=["send_external"], risk="high")
async def send(to: str) -> dict[str, str]:
    calls.append(f"send {to}")
    if to == "nobody":
        raise ValueError("no such address")
    if to == "the end":
        raise bb.Fatal("stop here")
    if to == "the police":
        raise Denied("not them")
    return {"to": to}


@op()
async def undeclared() -> str:
    calls.append("undeclared")
    return "did something"


def looking(at: str) -> ToolCall:
    return ToolCall(f"look-{at}", "look", f'{{"at": "{at}"}}')


def sending(to: str) -> ToolCall:
    return ToolCall(f"send-{to}", "send", f'{{"to": "{to}"}}')


FINALIZE = ToolCall("f", "finalize")


async def speak(turn: bb.Turn, chat: bb.ModelChat) -> None:
    turn.reply("spoken")


speaker = bb.Agent("speaker").on_message(speak)


def deciding(text: str) -> ToolCall:
    return ToolCall("d", "decide", text)


class Asked:
    """An approver that keeps what it was asked, and answers as told."""

    def __init__(self, *answers: Decision) -> None:
        self.requests: list[Approval] = []
        self._answers = list(answers)

    async def approve(self, request: Approval, /) -> Decision:
        self.requests.append(request)
        return self._answers.pop(0) if self._answers else Decision.allow()

    @property
    def ops(self) -> list[list[str]]:
        return [[call.op for call in request.calls] for request in self.requests]


def stage(tools: Sequence[object] = (look, send), rounds: int = 8, until: str | None = None) -> bb.NamedFlow:
    return Bind("found", AiSegment("Do it", tools, rounds, until)).next(Return(Var("found"))).with_id("flow")


async def come_to(model: Any, flow: bb.AnyFlow | None = None, **options: Any) -> Any:
    outcome = await bb.App(model=model, **options).run(flow if flow is not None else stage(), "hi")
    assert outcome.messages == ()  # a stage does not speak
    return outcome.value


def told(model: ScriptedModel, ask: int) -> tuple[ToolResult, ...]:
    return model.requests[ask].messages[-1].results


# --- what the model is sent ---


async def test_the_chat_begins_with_the_goal_alone_and_the_nearest_model_is_asked() -> None:
    near, far = ScriptedModel("near"), ScriptedModel()
    segment = AiSegment(Format("Go to {where}")).with_model(near)
    flow = Bind("where", "Rome").next(Bind("found", segment)).next(Return(Var("found"))).with_id("flow")

    assert (await come_to(far, flow))["result"] == "near"

    assert [(message.role, message.content) for message in near.requests[0].messages] == [("user", "Go to Rome")]


async def test_the_control_tools_that_are_offered() -> None:
    for tools, names in (
        ([], ["decide"]),
        ([look], ["look", "decide"]),
        ([send], ["send", "finalize", "decide"]),
    ):
        model = ScriptedModel("done")
        await come_to(model, stage(tools))
        assert [tool.name for tool in model.requests[0].tools] == names


async def test_the_goal_may_be_a_call() -> None:
    model = ScriptedModel("done")
    flow = Bind("found", AiSegment(look("Rome"))).next(Return(Var("found"))).with_id("flow")

    await come_to(model, flow, ops=[look])

    assert model.requests[0].messages[0].content == "saw Rome" and calls == ["look Rome"]


# --- reading and proposing ---


def test_which_ops_run_at_once() -> None:
    def safe(*effects: str, risk: Any = "low") -> bool:
        return op("x", effects=effects, risk=risk)(lambda: None).is_gather_safe

    assert safe("pure") and safe("read") and safe("read", "network") and safe("pure", "read")
    assert not safe() and not safe("network") and not safe("pure", "network") and not safe("network", "network")
    assert not safe("read", risk="medium") and not safe("read", "write_file") and not safe("model")


async def test_reads_run_at_once_and_everything_else_waits_for_the_end() -> None:
    model = ScriptedModel([looking("a"), sending("b"), ToolCall("u", "undeclared")], ["ready", FINALIZE])

    value = await come_to(model, stage([look, send, undeclared]))

    assert calls == ["look a", "send b", "undeclared"]
    assert [result.content for result in told(model, 1)] == ["saw a", PROPOSED, PROPOSED]
    assert value == {
        "result": "ready",
        "reason": "answer",
        "rounds": 2,
        "actions": [
            {"id": "send-b", "op": "send", "status": "ok", "result": {"to": "b"}},
            {"id": "u", "op": "undeclared", "status": "ok", "result": "did something"},
        ],
    }


async def test_a_prose_answer_ends_it_like_finalize() -> None:
    value = await come_to(ScriptedModel(sending("a"), "sent"))

    assert calls == ["send a"] and (value["result"], value["reason"], value["rounds"]) == ("sent", "answer", 2)


async def test_what_goes_wrong_while_reading_is_for_the_model_to_see() -> None:
    model = ScriptedModel([looking("nowhere"), ToolCall("2", "look", '{"where": 1}'), ToolCall("3", "look", "{")], "oh")

    assert (await come_to(model))["result"] == "oh"

    results = told(model, 1)
    assert all(result.is_error for result in results)
    assert "there is nothing" in results[0].content and "no 'where'" in results[1].content
    assert "not JSON" in results[2].content


async def test_a_fatal_error_is_not() -> None:
    for call in (looking("the end"), sending("the end")):
        with pytest.raises(OpFailed, match="stop here") as caught:
            await come_to(ScriptedModel([call], "done"))
        assert caught.value.path.endswith("bind.0")


async def test_after_the_first_failure_the_rest_of_the_batch_is_skipped() -> None:
    value = await come_to(ScriptedModel([sending("a"), sending("nobody"), sending("c"), FINALIZE]))

    assert calls == ["send a", "send nobody"] and value["reason"] == "answer"
    assert [action["status"] for action in value["actions"]] == ["ok", "error", "skipped"]
    assert "no such address" in value["actions"][1]["result"] and value["actions"][2]["result"] is None


async def test_an_op_that_denies_stops_everything() -> None:
    with pytest.raises(Denied, match="not them"):
        await come_to(ScriptedModel([sending("the police"), FINALIZE]))


# --- ending it ---


@pytest.mark.parametrize(
    ("text", "decision"),
    [('{"value": 3}', 3), ('{"value": null}', None), ('{"slot": "x"}', {"slot": "x"}), ('["a"]', ["a"]), ("", {})],
)
async def test_a_decision_is_any_json(text: str, decision: object) -> None:
    value = await come_to(ScriptedModel(deciding(text)), stage([]))

    assert (value["reason"], value["decision"], value["rounds"]) == ("decision", decision, 1)


async def test_a_decision_carries_out_what_was_proposed() -> None:
    value = await come_to(ScriptedModel([sending("a"), deciding('{"value": "a"}')]))

    assert calls == ["send a"]
    assert value == {
        "result": "a",
        "reason": "decision",
        "rounds": 1,
        "decision": "a",
        "actions": [{"id": "send-a", "op": "send", "status": "ok", "result": {"to": "a"}}],
    }


@pytest.mark.parametrize(
    "beside", [[looking("a"), FINALIZE], [ToolCall("x", "other"), FINALIZE], [FINALIZE, deciding('{"value": 1}')]]
)
async def test_nothing_ends_while_the_model_has_answers_to_read(beside: list[ToolCall]) -> None:
    model = ScriptedModel(beside, "done")

    assert (await come_to(model))["reason"] == "answer"

    ended = [result for result in told(model, 1) if result.call_id in ("f", "d")]
    assert ended and all(result.is_error and "alone" in result.content for result in ended)


async def test_a_decision_that_is_no_json_is_told_so() -> None:
    model = ScriptedModel(deciding("{"), "done")

    assert (await come_to(model))["rounds"] == 2

    assert told(model, 1)[0].is_error and "not JSON" in told(model, 1)[0].content


async def test_no_rounds_left_skips_what_was_proposed() -> None:
    value = await come_to(ScriptedModel(["first", sending("a")], sending("b")), stage(rounds=2))

    assert calls == [] and (value["result"], value["reason"], value["rounds"]) == ("first", "exhausted", 2)
    assert [action["status"] for action in value["actions"]] == ["skipped", "skipped"]


def test_what_counts_as_filled() -> None:
    assert [value for value in (None, "", [], (), {}, 0, False, " ", [0], {"a": 1}) if is_filled(value)] == [
        0,
        False,
        " ",
        [0],
        {"a": 1},
    ]


# --- leave ---


async def test_a_batch_is_approved_as_a_whole_and_only_once() -> None:
    asked = Asked()
    model = ScriptedModel([sending("a"), ToolCall("u", "undeclared")], [sending("b"), FINALIZE])

    await come_to(model, stage([send, undeclared]), approver=ByRisk("high", asked))

    assert asked.ops == [["send", "undeclared", "send"]] and calls == ["send a", "undeclared", "send b"]
    assert asked.requests[0].path == "flow/body~bind.0/approval#1"


async def test_a_refused_batch_does_not_run() -> None:
    asked = Asked(Decision.deny("not today"))

    value = await come_to(ScriptedModel([sending("a"), sending("b")], "sent"), approver=ByRisk("high", asked))

    assert calls == [] and (value["result"], value["reason"], value["rounds"]) == ("not today", "refused", 2)
    assert [(action["status"], action["result"]) for action in value["actions"]] == [("denied", "not today")] * 2


async def test_a_refused_decision_fills_nothing() -> None:
    model = ScriptedModel([sending("a"), deciding('{"value": 1}')])
    flow = Bind("found", AiSegment("Do it", [send], until="x")).next(Return(Var("x"))).with_id("flow")

    with pytest.raises(bb.BBError, match="x"):
        await come_to(model, flow, approver=DenyAll())

    assert calls == []


async def test_reads_are_asked_about_where_the_approver_wants_to_know() -> None:
    asked = Asked(Decision.allow(), Decision.deny("enough"))
    model = ScriptedModel([looking("a"), looking("b")], looking("c"))

    value = await come_to(model, approver=asked)

    assert asked.ops == [["look", "look"], ["look"]] and calls == ["look a", "look b"]
    assert (value["result"], value["reason"], value["rounds"]) == ("enough", "refused", 2)


async def test_an_approval_is_not_asked_for_again_after_a_crash() -> None:
    flow = stage().durable()
    for number in range(1, 7):
        calls.clear()
        store, asked = MockStore(), Asked()
        model = ScriptedModel(looking("a"), [sending("a"), FINALIZE])
        store.crash_at(number, "after")
        with pytest.raises((Crash, bb.BBError)):
            await mocked(store, flow, model=model, approver=asked).run("flow", "hi", run_id="r")
        store.revive()

        value: Any = (await mocked(store, flow, model=model, approver=asked).run("flow", "hi", run_id="r")).value

        assert value["reason"] == "answer" and calls == ["look a", "send a"]
        assert asked.ops == [["look"], ["send"]] and len(model.requests) == 2


async def test_an_approval_of_other_calls_is_none() -> None:
    asked, store = Asked(), MockStore()
    flow = stage().durable()

    def app(*script: Any) -> bb.App:
        return mocked(store, flow, model=ScriptedModel(*script), approver=ByRisk("high", asked))

    with pytest.raises(OpFailed):  # which forgets the answer
        await app([sending("the end"), FINALIZE]).run("flow", "hi", run_id="r")
    value: Any = (await app([sending("a"), FINALIZE]).run("flow", "hi", run_id="r")).value

    assert value["actions"][0]["status"] == "ok"
    assert [request.calls[0].arguments["to"] for request in asked.requests] == ["the end", "a"]


async def test_a_refusal_is_kept_too(disk: Disk) -> None:
    asked = Asked(Decision.deny("no way"))
    flow = stage().durable()
    for script in ([[sending("a"), FINALIZE]], []):
        app = disk.app(flow, model=ScriptedModel(*script), approver=ByRisk("high", asked))
        value: Any = (await app.run("flow", "hi", run_id="r")).value
        assert (value["reason"], value["result"]) == ("refused", "no way")
    assert len(asked.requests) == 1 and calls == []


class Down(Asked):
    """An approver that cannot be reached for so many questions."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self._times = times

    async def approve(self, request: Approval, /) -> Decision:
        decision = await super().approve(request)
        if len(self.requests) <= self._times:
            raise ConnectionError("slack is down, token 123")
        return decision


@pytest.mark.parametrize("script", [[[sending("a"), FINALIZE]], [looking("a"), "done"]])
async def test_an_approver_that_fails_fails_the_stage_and_is_asked_the_same_again(
    disk: Disk, script: list[Any]
) -> None:
    """A fault is no refusal: nothing of it is kept, and no answer of the model is asked for anew."""
    asked, model, flow = Down(1), ScriptedModel(*script), stage().durable()
    with pytest.raises(bb.ApproverFailed, match="slack is down") as failed, capture_logs() as logs:
        await disk.app(flow, model=model, approver=asked).run("flow", "hi", run_id="r")
    assert calls == [] and failed.value.path == "flow/body~bind.0"
    assert [log["event"] for log in logs if log["log_level"] == "warning"] == ["an approver failed"]
    begun = len(model.requests)

    value: Any = (await disk.app(flow, model=model, approver=asked).run("flow", run_id="r")).value

    assert value["reason"] == "answer" and len(calls) == 1
    assert len(model.requests) == len(script) and begun == 1
    assert asked.requests[0] == asked.requests[1] and "slack" not in str(value)


async def test_a_stage_whose_approver_failed_is_tried_again_by_its_durable_flow(disk: Disk) -> None:
    asked = Down(2)
    app = disk.app(
        stage().durable(retries=2),
        model=ScriptedModel([sending("a"), FINALIZE]),
        approver=asked,
        clock=ManualClock(auto=True),
    )

    value: Any = (await app.run("flow", "hi")).value

    assert value["reason"] == "answer" and calls == ["send a"] and len(asked.requests) == 3


# --- what stops it before it starts ---


async def test_without_a_model_nothing_runs() -> None:
    flow = Bind("found", AiSegment(look("Rome"), [look])).with_id("flow")
    with pytest.raises(bb.BBError, match="model"):
        await bb.App(ops=[look]).run(flow, "hi")
    assert calls == []


async def test_an_empty_goal_is_an_error() -> None:
    model = ScriptedModel()
    flow = Bind("goal", " ").next(Bind("found", AiSegment(Var("goal")))).with_id("flow")
    with pytest.raises(InvalidValue, match="goal"):
        await come_to(model, flow)
    assert model.requests == []


async def test_a_tool_that_the_policy_denies_is_denied_before_the_model_is_asked() -> None:
    model = ScriptedModel()
    with pytest.raises(Denied, match="send was denied"):
        await come_to(model, policy=Policy(deny=["send"]))
    assert model.requests == []


async def test_too_many_tools() -> None:
    ops: list[Op[Any, Any]] = [op(f"op{number}")(lambda: None) for number in range(65)]
    with pytest.raises(bb.WiringError, match="65 tools are more than the 64"):
        await come_to(ScriptedModel(), stage(ops))
    assert (await come_to(ScriptedModel("fine"), stage(ops[1:])))["result"] == "fine"


@pytest.mark.parametrize("name", ["finalize", "decide"])
async def test_the_names_of_control_tools_are_taken(name: str) -> None:
    taken: Op[Any, Any] = op(name)(lambda: None)
    with pytest.raises(bb.WiringError, match=f"{name}' is what a model calls to end the stage"):
        await come_to(ScriptedModel(), stage([taken]))


# --- failing and going on ---


async def test_a_model_that_fails_is_asked_again_where_it_failed(disk: Disk) -> None:
    flow = stage().durable()
    model = ScriptedModel(looking("a"), bb.UpstreamError("busy", status=503))
    with pytest.raises(bb.UpstreamError) as caught:
        await disk.app(flow, model=model).run("flow", "hi", run_id="r")
    assert (caught.value.flow, caught.value.path) == ("flow", "flow/body~bind.0")

    value: Any = (await disk.app(flow, model=ScriptedModel("done")).run("flow", "hi", run_id="r")).value

    assert value == {"result": "done", "reason": "answer", "rounds": 2} and calls == ["look a"]


async def test_what_a_model_raises_ends_as_an_error_of_bb() -> None:
    with pytest.raises(bb.AgentFailed, match="RuntimeError: broken"):
        await come_to(ScriptedModel(RuntimeError("broken")))


async def test_a_durable_flow_retries_a_stage() -> None:
    model = ScriptedModel(looking("a"), bb.UpstreamError("busy", status=503), "done")
    app = mocked(MockStore(), stage().durable(retries=1), model=model)

    value: Any = (await app.run("flow", "hi", run_id="r")).value

    assert value["rounds"] == 2 and calls == ["look a"]


async def test_an_action_is_never_repeated_once_its_result_is_known() -> None:
    flow, whole = stage().durable(), MockStore()
    script = [[sending("a"), sending("nobody"), sending("c"), FINALIZE]]
    await mocked(whole, flow, model=ScriptedModel(*script)).run("flow", "hi", run_id="r")
    for number in range(1, whole.appends + 1):
        calls.clear()
        store = MockStore()
        store.crash_at(number, "after")
        with pytest.raises((Crash, bb.BBError)):
            await mocked(store, flow, model=ScriptedModel(*script)).run("flow", "hi", run_id="r")
        store.revive()
        value: Any = (await mocked(store, flow, model=ScriptedModel(*script)).run("flow", "hi", run_id="r")).value
        assert [action["status"] for action in value["actions"]] == ["ok", "error", "skipped"]
        assert calls == ["send a", "send nobody"]


async def test_every_call_has_an_idempotency_key_of_its_own_that_a_crash_does_not_change() -> None:
    keys: list[str] = []

    @op()
    async def keyed(n: int) -> None:
        keys.append(bb.idempotency_key())

    store, flow = MockStore(), stage([keyed]).durable()
    proposed = [ToolCall(str(at), "keyed", f'{{"n": {n}}}') for at, n in enumerate((1, 2, 1))]
    store.crash_at(6, "before")
    with pytest.raises((Crash, bb.BBError)):
        await mocked(store, flow, model=ScriptedModel([*proposed, FINALIZE])).run("flow", "hi", run_id="r")
    assert len(keys) == 3  # and the third result is lost
    store.revive()
    await mocked(store, flow, model=ScriptedModel()).run("flow", "hi", run_id="r")

    assert len(keys) == 4 and len(set(keys)) == 3 and keys[2] == keys[3]


async def test_a_cancelled_stage_goes_on_where_it_was(disk: Disk) -> None:
    hold = Hold()

    @op(effects=["read"])
    async def slow(at: str) -> str:
        calls.append(at)
        if not hold.reached.is_set():
            hold.reached.set()
            await hold.go.wait()
        return at

    flow = stage([slow]).durable()
    model = ScriptedModel(ToolCall("1", "slow", '{"at": "x"}'), "done")
    await cut_off(disk.app(flow, model=model), hold, "flow", "hi", run_id="r")

    value: Any = (await disk.app(flow, model=model).run("flow", "hi", run_id="r")).value

    assert value["rounds"] == 2 and calls == ["x", "x"] and len(model.requests) == 2


# --- where it stands ---


async def test_a_throttle_counts_the_calls_inside() -> None:
    limited = Throttle("api", Bind("found", AiSegment("Do it", [look])), max=1, per=timedelta(minutes=1))
    model = ScriptedModel([looking("a"), looking("b")], "done", looking("c"), "done")
    app = bb.App(model=model)

    await app.run(limited.with_id("flow"), "hi", session_id="s")
    with pytest.raises(Throttled):
        await app.run(limited.with_id("flow"), "hi", session_id="s")

    assert calls == ["look a", "look b"]


async def test_each_round_of_a_loop_is_a_stage_of_its_own(disk: Disk) -> None:
    model = ScriptedModel(looking("a"), "one", looking("a"), "two")
    loop = Each("n", [1, 2], Bind("found", AiSegment("Do it", [look], 2)), collect="all")
    flow = loop.next(Return(Var("all"))).with_id("flow").durable()

    for _ in range(2):
        value: Any = (await disk.app(flow, model=model).run("flow", "hi", run_id="r")).value
        assert [record["result"] for record in value] == ["one", "two"] and calls == ["look a", "look a"]


async def test_a_stage_in_a_group_keeps_its_chat_to_itself() -> None:
    model = ScriptedModel("quiet")
    group = bb.Group(Bind("found", AiSegment("Do it")).with_id("a"), bb.Flow().with_agent(speaker).with_id("b"))
    flow = group.next(Return(Var("found"))).with_id("flow")

    outcome = await bb.App(model=model).run(flow, "hi")

    assert [message.content for message in outcome.messages] == ["spoken"]
    assert [message.content for message in model.requests[0].messages] == ["Do it"]


async def test_stages_side_by_side_and_in_a_flow_that_is_not_durable() -> None:
    first = ScriptedModel(deciding('{"value": 1}'))
    second = ScriptedModel(looking("a"), "two")
    members = (
        Bind("one", AiSegment("One", [look], until="x").with_model(first)).with_id("a").durable(),
        Bind("two", AiSegment("Two", [look]).with_model(second)).with_id("b"),
    )
    flow = bb.All(*members).next(Return([Var("x"), Var("two")])).with_id("flow")

    value = await come_to(None, flow)

    assert value == [1, {"result": "two", "reason": "answer", "rounds": 2}]


async def test_a_lone_answer_that_is_cancelled_from_inside_is_a_failure() -> None:
    async def cancelled(_: object) -> str:
        raise asyncio.CancelledError

    with pytest.raises(bb.AgentFailed, match="CancelledError"):
        await come_to(ScriptedModel(cancelled))
