"""`ModelChat`: how a handler faces the model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, Generic, NoReturn, Self, cast, final

from attrs import evolve, field, frozen
from typing_extensions import TypeVar

from bb.agents.agent import Agent
from bb.agents.answer import Answer, collect
from bb.agents.invoke import told
from bb.agents.ports import SharedChat
from bb.agents.reply import Feed, ModelReply
from bb.agents.tool import Tool
from bb.agents.turn import Turn
from bb.errors import (
    Closed,
    Interruption,
    InvalidInput,
    InvalidTool,
    MaxRounds,
    NoModel,
    SchemaMismatch,
    WiringError,
    is_fatal,
)
from bb.messages import Message, Request, ToolCall, ToolResult, ToolSpec, Usage
from bb.models.base import Model, ModelRequest, named
from bb.place import Ledger, Work
from bb.redaction import redacted

T = TypeVar("T", default=str)

MAX_ROUNDS: Final = 8


@frozen
class _Next:
    """What the next ask sends beside the messages."""

    tools: tuple[Tool | ToolSpec, ...] = ()
    choice: str = ""
    rounds: int = field(default=MAX_ROUNDS)


_NOTHING_YET: Final = _Next()


@final
class ModelChat(Generic[T]):
    """A conversation with the agent's model. It starts with the agent's role alone: the handler adds the rest.

    Sent are the role, then in a `Group` the live shared chat (which begins with the chat that came in), then what was
    added. Answers are not added by themselves; `resolve` adds the tool rounds it ran. Whoever runs the handler calls
    `aclose()` when it has returned, after which every method raises `Closed`.
    """

    def __init__(
        self,
        agent: Agent[T],
        model: Model | None,
        ledger: Ledger,
        request: Request,
        shared: SharedChat | None = None,
        live: bool = False,
        flow: str = "",
        path: str = "",
    ) -> None:
        self._agent = agent
        self._model = model
        self._ledger = ledger
        self._request = request
        self._shared = shared
        self._live = live
        self._turn: Turn | None = None
        self._flow = flow
        self._path = path
        self._added: list[Message] = []
        self._next = _NOTHING_YET
        self._arriving: dict[asyncio.Task[None], Feed] = {}
        self._closed = False

    def add(self, *messages: Message | str) -> Self:
        """Add messages (text is the user's) to what is sent from now on.

        Raises:
            InvalidInput: something is neither, such as a list of them.
        """
        self._check()
        self._added += _messages(messages)
        return self

    @property
    def messages(self) -> tuple[Message, ...]:
        """What an ask would send now."""
        self._check()
        role = (self._agent.role,) if self._agent.role is not None else ()
        shared = tuple(self._shared.view()) if self._shared is not None else ()
        return (*role, *shared, *self._added)

    def with_tools(self, *tools: Tool | ToolSpec) -> Self:
        """Offer tools in the next ask (only that one), beside those already named for it.

        Raises:
            WiringError: something is no tool.
        """
        self._check()
        for tool in tools:
            if not isinstance(tool, Tool | ToolSpec):
                raise _no_tool(tool, self._path)
        self._next = evolve(self._next, tools=self._next.tools + tools)
        return self

    def forward_tools(self) -> Self:
        """Offer the client's tools in the next ask, and adopt its tool choice."""
        self._check()
        choice = self._request.tool_choice or self._next.choice
        self._next = evolve(self._next, tools=self._next.tools + self._request.tools, choice=choice)
        return self

    def with_tool_choice(self, choice: str) -> Self:
        """Whether the next ask must call a tool: "" (the model decides), "any", "none" or the name of a tool.

        In `resolve` "any" or a name holds for the first round only; else the model could never answer.
        """
        self._check()
        self._next = evolve(self._next, choice=choice)
        return self

    def with_max_rounds(self, rounds: int) -> Self:
        """How often the next `resolve` may ask (default 8).

        Raises:
            WiringError: fewer than 1.
        """
        self._check()
        if rounds < 1:
            raise WiringError(f"max rounds is {rounds}", remedy="give 1 or more")
        self._next = evolve(self._next, rounds=rounds)
        return self

    async def ask(self) -> ModelReply[T]:
        """The model's answer. Tool calls are in the reply and nothing runs them.

        Inside a granted `turn.stream()` an answer without schema is handed back while it still arrives (see
        `ModelReply`); what goes wrong then is raised by the reply's readers.

        Raises:
            NoModel: there is no model to ask.
            InvalidTool: a tool is broken; the model was not asked.
            UpstreamError: the provider failed.
            SchemaMismatch: the answer does not fit the agent's schema.
            Closed: the handler has returned.
        """
        return await self.ask_with()

    async def ask_with(self, *messages: Message | str) -> ModelReply[T]:
        """`ask()` with further messages that are sent this once and not added.

        Raises: as `ask()`.
        """
        asked = self._take()
        request = self._request_of((*self.messages, *_messages(messages)), asked, asked.choice)
        if self._live and (self._turn is None or self._turn.streaming) and request.schema is None:
            return self._ask_live(request)
        return self._reply(await self._answer(request, Feed()))

    async def resolve(self) -> ModelReply[T]:
        """Ask, run the tools that the model calls, tell it their results, and so on until it answers.

        The calls of a round run in order; an error of a handler is a result the model sees, unless it is `Fatal`, an
        `Interruption` or a cancellation, and so is the call of a tool that was not offered. A round with any call of an
        offered tool that has no handler here is handed back with nothing run. Finished rounds are added to the chat,
        also when the cap stops it. The reply's usage is that of all rounds.

        Raises: as `ask()`, and
            MaxRounds: the model still calls tools in the last ask it may have.
        """
        asked = self._take()
        handlers = {tool.name: tool for tool in asked.tools if isinstance(tool, Tool) and tool.handler is not None}
        theirs = {_spec(tool).name for tool in asked.tools} - handlers.keys()
        usage, choice = Usage(), asked.choice
        for left in reversed(range(asked.rounds)):
            answer = await self._answer(self._request_of(self.messages, asked, choice), Feed())
            usage += answer.usage
            calls = answer.message.calls
            if not calls or any(call.name in theirs for call in calls):
                return self._reply(evolve(answer, usage=usage))
            if left == 0:
                break
            results = [
                await self._run(handlers[call.name], call)
                if call.name in handlers
                else call.result(f"no tool {call.name!r}; there are {', '.join(handlers) or 'none'}", is_error=True)
                for call in calls
            ]
            self._check()
            self._added += [answer.message, Message(role="tool", results=tuple(results))]
            choice = choice if choice == "none" else ""
        raise MaxRounds(
            f"the model still calls tools after {asked.rounds} asks",
            flow=self._flow,
            path=self._path,
            remedy="raise with_max_rounds, or ask once more without tools: the finished rounds are in the chat",
        )

    def live_in(self, turn: Turn) -> None:
        """Hand answers back while they arrive only inside a live stream of this turn, if this chat may do it at all.

        Elsewhere a handler need not know whether a client watches: what it gets is whole.
        """
        self._turn = turn

    def close(self) -> bool:
        """The handler has returned: every method raises `Closed`. Whether answers are still arriving, for `aclose`."""
        self._closed = True
        return bool(self._arriving)

    async def aclose(self) -> None:
        """`close`, and cancel the answers that are still arriving."""
        self.close()
        arriving = dict(self._arriving)
        for task in arriving:
            task.cancel()
        for task, feed in arriving.items():
            await asyncio.wait([task])
            if not feed.ended:
                feed.fail(self._was_closed())

    # the parts of an ask

    def _take(self) -> _Next:
        """What the next ask sends, used up by this one; refused when it cannot be sent."""
        self._check()
        asked, self._next = self._next, _NOTHING_YET
        if self._model is None:
            raise NoModel(
                f"agent {self._agent.name or '(unnamed)'} of flow {self._flow or '(unnamed)'} has no model",
                path=self._path,
                remedy="with_model on the agent, its flow or a flow around it, or App(model=...)",
            )
        names: dict[str, ToolSpec] = {}
        for tool in asked.tools:
            if isinstance(tool, Tool):
                tool.check(self._path or self._flow)
            spec = _spec(tool)
            if names.setdefault(spec.name, spec) != spec:
                raise InvalidTool(f"two tools are named {spec.name!r}", path=self._path, remedy="rename one of them")
        if asked.tools and asked.choice not in ("", "any", "none") and asked.choice not in names:
            raise InvalidTool(f"tool choice {asked.choice!r} names no tool that is sent", path=self._path)
        return asked

    def _request_of(self, messages: Sequence[Message], asked: _Next, choice: str) -> ModelRequest:
        schema = self._agent.schema
        return ModelRequest(
            messages=messages,
            tools=tuple({spec.name: spec for spec in map(_spec, asked.tools)}.values()),
            tool_choice=choice if asked.tools else "",
            schema=schema.json_schema if schema is not None else None,
            schema_name=schema.name if schema is not None else "",
        )

    async def _answer(self, request: ModelRequest, feed: Feed) -> Answer:
        """The whole answer, from the ledger if it is there; checked before it is recorded: a bad one is asked anew."""
        model = cast(Model, self._model)
        work = Work(*named(model))

        def say(text: str) -> None:
            work.hear()
            feed.say(text)

        def bill(usage: Usage) -> None:
            work.usage = usage
            feed.bill(usage)
            self._ledger.spend(usage)

        async def run() -> Answer:
            answer = await collect(model, request, say, bill)
            if not answer.message.calls:
                self._read(answer)
            return answer

        return await self._ledger.entry("ask", self._agent.name or "", _fingerprint(request), run, work)

    def _ask_live(self, request: ModelRequest) -> ModelReply[T]:
        feed = Feed()

        async def arrive() -> None:
            try:
                feed.end(await self._answer(request, feed))
            except Exception as error:
                feed.fail(error)  # for whoever reads the reply
            except BaseException:
                feed.fail(self._was_closed())
                raise

        task = asyncio.create_task(arrive())
        self._arriving[task] = feed
        task.add_done_callback(lambda done: self._arriving.pop(done, None))
        return ModelReply(feed, self._read)

    def _reply(self, answer: Answer) -> ModelReply[T]:
        return ModelReply(Feed.of(answer), self._read)

    def _read(self, answer: Answer) -> T:
        schema = self._agent.schema
        if schema is None:
            return cast(T, answer.message.content)
        if answer.message.calls and not answer.message.content:
            called = ", ".join(dict.fromkeys(call.name for call in answer.message.calls))
            raise SchemaMismatch(
                f"the model called tools ({called}) and gave no answer",
                path=self._path,
                remedy="run them, as resolve() does with tools that have a function, or read reply.tool_calls",
            )
        try:
            return schema.parse(answer.message.content)
        except SchemaMismatch as error:
            raise SchemaMismatch(error.message, flow=self._flow, path=self._path) from error

    async def _run(self, tool: Tool, call: ToolCall) -> ToolResult:
        work = Work(tool.name)

        async def run() -> ToolResult:
            try:
                return call.result(await tool.run(call))
            except Exception as error:
                if _propagates(error):
                    raise
                work.error = type(error).__name__
                return call.result(redacted(str(error) or type(error).__name__), is_error=True)

        result = await self._ledger.entry("tool", tool.name, (call.name, call.input), run, work)
        return evolve(result, call_id=call.id)

    def _check(self) -> None:
        if self._closed:
            raise self._was_closed()

    def _was_closed(self) -> Closed:
        return Closed(
            "the chat was used after its handler had returned",
            flow=self._flow,
            path=self._path,
            remedy="await everything the handler starts before it returns",
        )


def _messages(given: Sequence[Message | str]) -> list[Message]:
    return [
        Message(one) if isinstance(one, str) else one if isinstance(one, Message) else _refused(one) for one in given
    ]


def _refused(given: object) -> NoReturn:
    what, advice = told(given)
    if isinstance(given, list | tuple):
        advice = "pass messages one by one: chat.add(*turn.messages)"
    elif isinstance(given, ModelReply):
        advice = "chat.add(reply.message)"
    raise InvalidInput(f"add takes text and Messages, not {what}", remedy=advice or "bb.Message(text, role)")


def _no_tool(given: object, path: str) -> WiringError:
    what, advice = told(given)
    if isinstance(given, list | tuple):
        advice = "pass tools one by one: chat.with_tools(*tools)"
    return WiringError(
        f"with_tools takes tools, not {what}",
        path=path,
        remedy=advice or "pass bb.Tool(name, description, schema).on_call(fn)",
    )


def _spec(tool: Tool | ToolSpec) -> ToolSpec:
    return tool.spec if isinstance(tool, Tool) else tool


def _fingerprint(request: ModelRequest) -> dict[str, object]:
    """What makes two asks equal, as plain values. The model does not count: another one may finish the work."""
    return {
        "messages": tuple(request.messages),
        "tools": tuple((tool.name, tool.description, dict(tool.schema)) for tool in request.tools),
        "choice": request.tool_choice,
        "schema": dict(request.schema) if request.schema is not None else None,
    }


def _propagates(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return any(_propagates(part) for part in error.exceptions)
    return is_fatal(error) or isinstance(error, Interruption)
