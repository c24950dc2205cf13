"""Official clients against a server process: cases 61 to 66 and 84 to 98 of serving, on both wires."""

from __future__ import annotations

import json
from uuid import uuid4

import anthropic
import httpx2
import openai
import pytest

import bb
from bb.testing.scripted_model import ScriptedModel
from tests.serve.kit import (
    CLIENTS,
    PATHS,
    Client,
    Site,
    ViaAnthropic,
    ViaOpenAI,
    agent,
    body_of,
    error_of,
    frames_of,
    serving,
)
from tests.serve.stage import app_of

ANSWERS = {
    "single": "one stage",
    "three": "one\n\nthree",
    "leaves": "first\n\nsecond\n\nlast",
    "selected": "inside",
    "parallel": "left\n\nright\n\nthen",
    "plain": "not durable",
}

TOOL = {"type": "object", "properties": {"city": {"type": "string"}}}


@pytest.fixture(params=CLIENTS, ids=lambda kind: kind.__name__)
def client(request: pytest.FixtureRequest, running: Site) -> Client:
    made: Client = request.param(running.url)
    return made


@pytest.mark.parametrize("model", ANSWERS)
async def test_case_86_a_stream_joined_is_the_whole_answer(client: Client, model: str) -> None:
    whole = await client.ask(model, "hi", stream=False)
    streamed = await client.ask(model, "hi", stream=True)

    assert whole.text == streamed.text == ANSWERS[model]
    assert whole.finish == streamed.finish and whole.finish in ("stop", "end_turn")


async def test_case_86_a_chunk_is_a_delta(client: Client) -> None:
    heard = await client.ask("single", "hi", stream=True)
    assert heard.pieces == ("one ", "stage")


@pytest.mark.parametrize(("path", "ends"), [(PATHS[0], "[DONE]"), (PATHS[1], "message_stop")])
async def test_case_86_several_stages_end_once(running: Site, path: str, ends: str) -> None:
    async with httpx2.AsyncClient(base_url=running.url) as http:
        answer = await http.post(path, json=body_of(path, "hi", "three", stream=True))
    said = frames_of(answer.text)
    assert [ends in (event, data) for event, data in said] == [False] * (len(said) - 1) + [True]


async def test_case_61_to_63_each_stage_streams_and_the_silent_one_leaves_no_trace(client: Client) -> None:
    heard = await client.ask("three", "hi", stream=True)
    assert heard.pieces == ("o", "ne", "\n\n", "th", "ree")


async def test_case_65_a_stage_inside_a_select_streams(client: Client) -> None:
    heard = await client.ask("selected", "hi", stream=True)
    assert heard.pieces == ("in", "side")


@pytest.mark.parametrize("model", [*ANSWERS, "resumed", "mixed"])
async def test_case_66_however_often_it_is_asked_for_the_answer_is_the_same(client: Client, model: str) -> None:
    headers = {"X-Run-Id": uuid4().hex}
    if model in ("resumed", "mixed"):
        with pytest.raises((openai.APIError, anthropic.APIError)):
            await client.ask(model, "hi", stream=True, headers=headers)

    first = await client.ask(model, "hi", stream=True, headers=headers)
    again = await client.ask(model, "hi", stream=True, headers=headers)
    whole = await client.ask(model, "hi", stream=False, headers=headers)

    known = {**ANSWERS, "resumed": "sure \n\nmaybe", "mixed": "kept\n\nmaybe"}
    assert first.text == again.text == whole.text == known[model]


@pytest.mark.parametrize("path", PATHS)
async def test_case_87_a_failure_is_a_500_that_tells_no_secret(running: Site, path: str) -> None:
    async with httpx2.AsyncClient(base_url=running.url) as http:
        answer = await http.post(path, json=body_of(path, "hi", "fails"))

    status, type_, message = error_of(path, answer)
    assert status == 500 and type_ == ("api_error" if path == "/v1/messages" else "server_error")
    run_id = answer.headers["x-run-id"]
    assert run_id in message and "secret" not in answer.text
    assert run_id in running.log() and "secret of the house" in running.log() and "flow=fails" in running.log()


@pytest.mark.parametrize("path", PATHS)
async def test_case_87_a_failure_in_a_stream_is_a_frame_after_the_text(running: Site, path: str) -> None:
    async with httpx2.AsyncClient(base_url=running.url) as http:
        answer = await http.post(path, json=body_of(path, "hi", "breaks", stream=True))

    assert answer.status_code == 200 and "secret" not in answer.text
    said = frames_of(answer.text)
    if path == "/v1/messages":
        kinds = [event for event, _ in said]
        assert kinds == ["message_start", "content_block_start", "content_block_delta", "content_block_stop", "error"]
        error = json.loads(said[-1][1])["error"]
        assert error["type"] == "api_error"
    else:
        assert said[-1][1] == "[DONE]" and json.loads(said[1][1])["choices"][0]["delta"]["content"] == "so far"
        error = json.loads(said[-2][1])["error"]
        assert error["type"] == "server_error"
    assert answer.headers["x-run-id"] in error["message"]


async def test_case_87_clients_raise_what_comes_in_a_stream(client: Client) -> None:
    with pytest.raises((openai.APIError, anthropic.APIStatusError), match="the run failed"):
        await client.ask("breaks", "hi", stream=True)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
async def test_case_64_a_stream_that_its_handler_never_closes_ends_with_the_error(path: str, stream: bool) -> None:
    async def claims(turn: bb.Turn, chat: bb.ModelChat) -> None:
        out = await turn.stream().__aenter__()
        await out.write("so far")
        raise RuntimeError("a bug")

    flow = agent(claims).with_id("f")
    async with serving(app_of(flow).asgi()) as url, httpx2.AsyncClient(base_url=url, timeout=10) as http:
        answer = await http.post(path, json=body_of(path, "hi", stream=stream))
    assert answer.status_code == (200 if stream else 500)
    assert "the run failed" in answer.text and ("so far" in answer.text) is stream


@pytest.mark.parametrize("stream", [False, True])
async def test_case_88_silence_is_an_empty_answer(client: Client, stream: bool) -> None:
    heard = await client.ask("silent", "hi", stream=stream)
    assert heard.text == "" and heard.finish in ("stop", "end_turn")


async def test_case_89_what_a_client_of_openai_asks_for_reaches_the_turn(running: Site) -> None:
    heard = await ViaOpenAI(running.url).ask(
        "told",
        [
            {"role": "developer", "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "brief"}]},
            {"role": "user", "content": "hi"},
        ],
        stream=False,
        temperature=1,
        top_p=0.5,
        max_tokens=7,
        max_completion_tokens=9,
        stop="end",
        reasoning_effort="low",
        tools=[{"type": "function", "function": {"name": "look", "description": "looks", "parameters": TOOL}}],
        tool_choice={"type": "function", "function": {"name": "look"}},
    )
    request, messages = json.loads(heard.text)
    assert request == {
        "model": "told",
        "temperature": 1.0,
        "top_p": 0.5,
        "top_k": None,
        "max_tokens": 9,
        "stop": ["end"],
        "think": True,
        "tools": [{"name": "look", "description": "looks", "schema": TOOL}],
        "tool_choice": "look",
    }
    assert [(message["role"], message["content"]) for message in messages] == [
        ("developer", "be brief"),
        ("user", "hi"),
    ]


async def test_case_89_what_a_client_of_anthropic_asks_for_reaches_the_turn(running: Site) -> None:
    heard = await ViaAnthropic(running.url).ask(
        "told",
        [{"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]}],
        stream=False,
        system=[{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
        extra_body={"temperature": 1, "top_p": 0.5, "top_k": 3},
        max_tokens=2000,
        stop_sequences=["end"],
        thinking={"type": "enabled", "budget_tokens": 1024},
        tools=[{"name": "look", "description": "looks", "input_schema": TOOL}],
        tool_choice={"type": "any"},
    )
    request, messages = json.loads(heard.text)
    assert request == {
        "model": "told",
        "temperature": 1.0,
        "top_p": 0.5,
        "top_k": 3,
        "max_tokens": 2000,
        "stop": ["end"],
        "think": True,
        "tools": [{"name": "look", "description": "looks", "schema": TOOL}],
        "tool_choice": "any",
    }
    assert [(message["role"], message["content"]) for message in messages] == [("system", "be brief"), ("user", "hi")]


@pytest.mark.parametrize(("given", "think"), [({}, None), ({"thinking": {"type": "disabled"}}, False)])
async def test_case_89_thinking_that_is_not_asked_for_stays_unset(
    running: Site, given: dict[str, object], think: bool | None
) -> None:
    heard = await ViaAnthropic(running.url).ask("told", "hi", stream=False, **given)
    assert json.loads(heard.text)[0]["think"] is think


LOOK = {"type": "function", "function": {"name": "look"}}
NOTHING: dict[str, object] = {"think": None, "max_tokens": None, "stop": [], "tool_choice": "", "temperature": None}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, NOTHING),
        ({"max_tokens": 7, "stop": ["a", "b"]}, {"max_tokens": 7, "stop": ["a", "b"]}),
        *(
            ({"tools": [LOOK], "tool_choice": choice}, {"tool_choice": kept})
            for choice, kept in (("auto", ""), ("required", "any"), ("none", "none"))
        ),
    ],
)
async def test_case_89_what_openai_leaves_out_stays_unset_and_choices_are_told_apart(
    running: Site, given: dict[str, object], told: dict[str, object]
) -> None:
    heard = await ViaOpenAI(running.url).ask("told", "hi", stream=False, **given)
    assert json.loads(heard.text)[0].items() >= told.items()


@pytest.mark.parametrize(
    ("choice", "kept"), [({"type": "auto"}, ""), ({"type": "none"}, "none"), ({"type": "tool", "name": "look"}, "look")]
)
async def test_case_89_choices_of_anthropic_are_told_apart(running: Site, choice: dict[str, str], kept: str) -> None:
    tools = [{"name": "look", "input_schema": TOOL}]
    heard = await ViaAnthropic(running.url).ask("told", "hi", stream=False, tools=tools, tool_choice=choice)
    assert json.loads(heard.text)[0]["tool_choice"] == kept


@pytest.mark.parametrize("stream", [False, True])
async def test_case_90_a_client_of_openai_runs_the_tools(running: Site, stream: bool) -> None:
    client = ViaOpenAI(running.url)
    tools = [{"type": "function", "function": {"name": "weather", "description": "", "parameters": TOOL}}]
    asked = {"role": "user", "content": "weather?"}

    first = await client.ask("relay", [asked], stream=stream, tools=tools)

    assert first.text == "Let me look." and first.finish == "tool_calls"
    assert first.calls == (("call_1", "weather", {"city": "Oslo"}), ("call_2", "weather", {}))

    said = {
        "role": "assistant",
        "content": first.text,
        "tool_calls": [
            {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(given)}}
            for id, name, given in first.calls
        ],
    }
    results = [{"role": "tool", "tool_call_id": id, "content": f"rain {id}"} for id, _, _ in first.calls]
    last = await client.ask("relay", [asked, said, *results], stream=stream, tools=tools)
    assert last.text == "it says rain call_2" and last.calls == () and last.finish == "stop"

    half = await client.ask("relay", [asked, said, results[0]], stream=stream, tools=tools)
    assert [call[0] for call in half.calls] == ["call_2"] and half.finish == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
async def test_case_90_a_client_of_anthropic_runs_the_tools(running: Site, stream: bool) -> None:
    client = ViaAnthropic(running.url)
    tools = [{"name": "weather", "description": "", "input_schema": TOOL}]
    asked = {"role": "user", "content": "weather?"}

    first = await client.ask("relay", [asked], stream=stream, tools=tools)

    assert first.text == "Let me look." and first.finish == "tool_use"
    assert first.calls == (("call_1", "weather", {"city": "Oslo"}), ("call_2", "weather", {}))

    calls = [{"type": "tool_use", "id": id, "name": name, "input": given} for id, name, given in first.calls]
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    said = {"role": "assistant", "content": [thought, {"type": "text", "text": first.text}, *calls]}
    results = [
        {"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": "rain"}]},
        {"type": "tool_result", "tool_use_id": "call_2", "content": "snow", "is_error": True},
        {"type": "text", "text": "so?"},
    ]
    answers = {"role": "user", "content": results}
    last = await client.ask("relay", [asked, said, answers], stream=stream, tools=tools)
    assert last.text == "it says snow" and last.calls == () and last.finish == "end_turn"

    told = await client.ask("told", [asked, said, answers], stream=stream, tools=tools)
    _, (_, call, result) = json.loads(told.text)
    assert call["content"] == "Let me look." and [each["id"] for each in call["calls"]] == ["call_1", "call_2"]
    assert result["content"] == "so?" and [each["is_error"] for each in result["results"]] == [False, True]


@pytest.mark.parametrize("path", PATHS)
async def test_case_90_calls_come_after_the_text(running: Site, path: str) -> None:
    tool = {"name": "weather", "input_schema": TOOL}
    if path == PATHS[0]:
        tool = {"type": "function", "function": {"name": "weather", "parameters": TOOL}}
    async with httpx2.AsyncClient(base_url=running.url) as http:
        answer = await http.post(path, json=body_of(path, "weather?", "relay", stream=True, tools=[tool]))
    said = answer.text
    assert said.index("Let ") < said.index("me look.") < said.index("call_1") < said.index("call_2")


@pytest.mark.parametrize("stream", [False, True])
async def test_case_90_tools_reach_a_model_as_they_were_sent(stream: bool) -> None:
    model = ScriptedModel("fine", "fine")
    app = bb.App(model=model)
    app.register(bb.Flow().with_agent(bb.Agent("a")).with_id("f").durable())
    theirs = {"type": "function", "function": {"name": "look", "description": "looks", "parameters": TOOL}}
    others = {"name": "look", "description": "looks", "input_schema": TOOL}
    async with serving(app.asgi()) as url:
        await ViaOpenAI(url).ask(
            "f", "hi", stream=stream, tools=[theirs], tool_choice={"type": "function", "function": {"name": "look"}}
        )
        await ViaAnthropic(url).ask(
            "f", "hi", stream=stream, tools=[others], tool_choice={"type": "tool", "name": "look"}
        )
    for request in model.requests:
        assert [(tool.name, tool.description, tool.schema) for tool in request.tools] == [("look", "looks", TOOL)]
        assert request.tool_choice == "look"
    assert len(model.requests) == 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", CLIENTS)
async def test_case_90_a_call_that_the_flow_answers_itself_never_leaves(
    kind: type[ViaOpenAI | ViaAnthropic], stream: bool
) -> None:
    ran: list[object] = []

    async def handler(turn: bb.Turn, chat: bb.ModelChat) -> None:
        own = bb.Tool("clock", "Tells the time", {"type": "object"}).on_call(ran.append)
        reply = await chat.add(*turn.messages).with_tools(own).resolve()
        async with turn.stream() as out:
            await out.write(reply.text)

    app = bb.App(model=ScriptedModel(bb.ToolCall("c1", "clock", "{}"), "It is noon."))
    app.register((agent(handler) >> bb.Respond()).with_id("f").durable())
    async with serving(app.asgi()) as url:
        heard = await kind(url).ask("f", "what time is it?", stream=stream)
    assert (heard.text, heard.calls) == ("It is noon.", ()) and heard.finish in ("stop", "end_turn")
    assert ran == [{}]


async def test_case_91_the_counts_of_openai_come_in_a_stream_only_when_asked_for(running: Site) -> None:
    client = ViaOpenAI(running.url)
    whole = await client.ask("chat", "hi", stream=False)
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens, whole.usage.total_tokens) == (15, 5, 20)
    assert whole.usage.prompt_tokens_details.cached_tokens == 3

    assert (await client.ask("chat", "hi", stream=True)).usage is None
    counted = await client.ask("chat", "hi", stream=True, stream_options={"include_usage": True})
    assert counted.usage.total_tokens == 20


@pytest.mark.parametrize("stream", [False, True])
async def test_case_91_the_counts_of_anthropic_always_come(running: Site, stream: bool) -> None:
    usage = (await ViaAnthropic(running.url).ask("chat", "hi", stream=stream)).usage
    counts = (usage.input_tokens, usage.output_tokens, usage.cache_read_input_tokens, usage.cache_creation_input_tokens)
    assert counts == (10, 5, 3, 2)


async def test_case_92_the_models_are_the_flows(running: Site) -> None:
    ids = sorted(
        [
            *ANSWERS,
            *(
                "resumed",
                "mixed",
                "chat",
                "relay",
                "fails",
                "breaks",
                "slow",
                "fleeting-flow",
                "tidy-flow",
                "told",
                "silent",
                "table",
            ),
        ]
    )
    async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none") as theirs:
        assert [model.id async for model in theirs.models.list()] == ids
    async with anthropic.AsyncAnthropic(base_url=running.url, api_key="none") as others:
        assert [model.id async for model in others.models.list()] == ids


@pytest.mark.parametrize("stream", [False, True])
async def test_case_96_the_run_id_comes_back(client: Client, stream: bool) -> None:
    run_id = f"a.B:c-{uuid4().hex}"
    heard = await client.ask("chat", "hi", stream=stream, headers={"X-Run-Id": run_id})
    assert heard.headers["x-run-id"] == run_id

    made = await client.ask("chat", "hi", stream=stream)
    assert len(made.headers["x-run-id"]) == 32


@pytest.mark.parametrize("stream", [False, True])
async def test_case_97_the_same_run_id_asks_no_model_again(running: Site, client: Client, stream: bool) -> None:
    headers = {"X-Run-Id": uuid4().hex}
    before = running.notes().count("asked model")

    first = await client.ask("chat", "hi", stream=stream, headers=headers)
    again = await client.ask("chat", "hi", stream=not stream, headers=headers)

    assert first.text == again.text == "Hello" and running.notes().count("asked model") == before + 1


@pytest.mark.parametrize("stream", [False, True])
async def test_the_same_run_id_with_another_body_is_a_conflict(client: Client, stream: bool) -> None:
    headers = {"X-Run-Id": uuid4().hex}
    await client.ask("chat", "hi", stream=False, headers=headers)

    for model, said, more in (
        ("chat", "ho", {}),
        ("single", "hi", {}),
        ("chat", "hi", {"extra_body": {"temperature": 0.5}}),
    ):
        with pytest.raises((openai.ConflictError, anthropic.ConflictError), match=headers["X-Run-Id"]):
            await client.ask(model, said, stream=stream, headers=headers, **more)


async def test_what_is_not_part_of_the_question_makes_no_conflict(running: Site) -> None:
    headers = {"X-Run-Id": uuid4().hex}
    client = ViaOpenAI(running.url)
    await client.ask("chat", "hi", stream=False, headers=headers, user="me")
    heard = await client.ask("chat", "hi", stream=True, headers=headers, stream_options={"include_usage": True})
    assert heard.text == "Hello" and heard.usage.total_tokens == 0


async def test_official_clients_do_not_insist_on_a_conflict(running: Site) -> None:
    headers = {"X-Run-Id": uuid4().hex}
    client = ViaOpenAI(running.url, retries=3)
    await client.ask("chat", "hi", stream=False, headers=headers)

    with pytest.raises(openai.ConflictError) as raised:
        await client.ask("chat", "ho", stream=False, headers=headers)
    refusals = [line for line in running.log().splitlines() if f"run_id={headers['X-Run-Id']}" in line]
    assert len(refusals) == 1 and raised.value.code == "input_conflict"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_conversation_goes_on_turn_by_turn(client: Client, stream: bool) -> None:
    session = {"X-Session-Id": uuid4().hex}
    asked = []
    for said in ("hello", "monday", "2"):
        heard = await client.ask("table", said, stream=stream, headers=session)
        asked.append(heard.text)
        assert heard.headers["x-session-id"] == session["X-Session-Id"]
    assert asked == ["Which day?", "monday: free on monday. How many?", "A table for 2."]


async def test_a_turn_that_comes_again_is_the_same_turn(running: Site, client: Client) -> None:
    session = uuid4().hex
    day = f"day {session}"

    async def say(said: str, turn: str, stream: bool = False) -> str:
        headers = {"X-Session-Id": session, "X-Run-Id": turn}
        heard = await client.ask("table", said, stream=stream, headers=headers)
        assert heard.headers["x-run-id"] == turn
        return heard.text

    assert await say("hello", "t1") == await say("hello", "t1", True) == "Which day?"
    second = await say(day, "t2")
    assert second == f"{day}: free on {day}. How many?" == await say(day, "t2", True) == await say(day, "t2")
    assert await say("hello", "t1") == "Which day?"
    assert await say("3", "t3") == await say("3", "t3", True) == "A table for 3."
    assert running.notes().count(f"find {day}") == 1

    for said, turn in (("other", "t1"), ("other", "t2"), ("4", "t3")):
        with pytest.raises((openai.ConflictError, anthropic.ConflictError)):
            await say(said, turn)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_run_that_waits_says_where_the_conversation_goes_on(client: Client, stream: bool) -> None:
    first = await client.ask("table", "hello", stream=stream)
    assert first.text == "Which day?"

    headers = {"X-Session-Id": first.headers["x-session-id"]}
    second = await client.ask("table", "friday", stream=stream, headers=headers)
    assert second.text == "friday: free on friday. How many?"
