"""Source text to flows: the parser, and what the rules for statements come to."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from functools import cache
from importlib.resources import files
from typing import Any, Final

from lark import Lark, Token, UnexpectedToken, v_args
from lark.lexer import Lexer

from bb.agents.agent import Agent
from bb.errors import InvalidWire
from bb.flows.expressions import List_, Obj, Var
from bb.flows.options import DurableOptions
from bb.flows.tree import (
    TRIGGERS,
    AiSegment,
    All,
    AnyFlow,
    Assert,
    At,
    Await,
    Bind,
    Body,
    Call,
    Chain,
    Checkpoint,
    Debounce,
    DurableFlow,
    Each,
    Emit,
    Every,
    Flow,
    Group,
    Memo,
    NamedFlow,
    Notify,
    Once,
    One,
    Param,
    Peek,
    Repeat,
    Respond,
    Retry,
    Return,
    Run,
    Saga,
    Scope,
    Select,
    Step,
    Throttle,
    Timeout,
    Try,
    Unless,
    Webhook,
    When,
    WithTools,
    flow_id,
)
from bb.flows.triggers import as_time
from bb.text.faults import fault, unexpected
from bb.text.module import Module
from bb.text.tokens import Tokens
from bb.text.values import (
    Misread,
    Part,
    Setting,
    Values,
    a_count,
    a_flag,
    a_span,
    a_text,
    a_value,
    a_word,
    given,
    highest,
    made,
    settle,
    span,
    texts,
)
from bb.wire import from_wire

_MEMBERS: Final = {"select": Select, "parallel": All, "race": One, "group": Group}

_BYTES: Final = 4  # that a token has on average, at least; those of ordinary text have more
_FEW: Final = 1000  # tokens that any text may have


def read(source: str, limit: int) -> Module:
    """The flows of a source text of at most `limit` bytes in UTF-8, and a quarter as many tokens, which are what takes time.

    Raises:
        InvalidText: it is no module of flows, or too large.
    """
    size = len(source) if len(source) > limit else len(source.encode(errors="surrogatepass"))
    if size > limit:
        raise fault("", f"the text is longer than {limit} bytes", 1, 1, "split it, or give a higher limit=")
    source = source.removeprefix("\ufeff").replace("\r\n", "\n")
    tokens = Tokens(source, max(limit // _BYTES, _FEW))
    try:
        module: Module = _parser().parse(tokens)  # type: ignore[assignment]  # what the rule `start` comes to
    except UnexpectedToken as error:
        token, still = error.token, ""
        if tokens.brackets and tokens.brackets[-1].line != token.line:
            still = f"the {tokens.brackets[-1]} of line {tokens.brackets[-1].line} is still open"
        line, column = tokens.place if token.type == "$END" else (token.line or 0, token.column or 0)
        before = source.split("\n", line)[line - 1][: column - 1]
        message, remedy = unexpected(token.type, token.value, error.accepts or (), still, before)
        raise fault(source, message, line, column, remedy) from None
    except Misread as error:
        raise fault(source, error.message, error.at.line or 0, error.at.column or 0, error.remedy) from None
    return module


class _Given(Lexer):
    """Hands on what is given: the tokens are made before."""

    def __init__(self, _: object) -> None:
        """Nothing is kept of the configuration."""

    def lex(self, tokens: Any) -> Iterator[Token]:  # type: ignore[override]  # the interface of a lexer without state
        return iter(tokens)


@cache
def _parser() -> Lark:
    grammar = (files("bb.text") / "grammar.lark").read_text("utf-8")
    return Lark(grammar, parser="lalr", lexer=_Given, transformer=_Statements(), maybe_placeholders=True)


def _body(flows: tuple[AnyFlow, ...]) -> Body:
    """What a name stands for: the one statement under it, else the chain of them."""
    if len(flows) == 1 and not isinstance(flows[0], (NamedFlow, DurableFlow, *TRIGGERS)):
        return flows[0]
    return Chain(flows)


def _value_of(token: Token | None) -> str | None:
    return None if token is None else token.value


@v_args(inline=True)
class _Statements(Values):
    """Rules for statements and flows. Each is given its words and parts in order, None for what may be missing and is."""

    def start(self, *flows: Part) -> Module:
        found: dict[str, NamedFlow | DurableFlow] = {}
        for flow, at, *_ in flows:
            if not isinstance(flow, NamedFlow | DurableFlow):
                raise Misread("only a flow with a name stands at the margin", at)
            if flow.id in found:
                raise Misread(f"two flows are named {flow.id!r}", at, "give one of them another name")
            found[flow.id] = flow
        return Module(found)

    # --- names, blocks ---

    def flow(self, durable: Part | None, _: Token, head: Part, *rest: Any) -> Part:
        _type, _goal, *statements = rest
        return self._named(durable, head, self.block(*statements))

    def goal(self, *_: Token) -> None:
        return None

    def durable(self, at: Token, settings: tuple[Setting, ...] | None) -> Part:
        known = {
            "retries": a_count,
            "ttl": a_span,
            "forward_compatible": a_flag,
            "resume_on_reregister": a_flag,
        }
        return made(at, 1, DurableOptions, **settle(at, settings or (), known))

    def head(self, name: Token, params: tuple[Param, ...] | None) -> Part:
        return Part((name.value, params or ()), name)

    def params(self, *params: Param) -> tuple[Param, ...]:
        return params

    def param(self, key: Token, type: str) -> Param:
        param: Param = made(key, 1, Param, key.value, type).value
        return param

    def name(self, token: Token) -> Token:
        if token.type == "OP" and "." in token.value:
            raise Misread("a name that is no identifier stands in quotes", token, f'write "{token}"')
        return token

    def block(self, *statements: Part) -> Part:
        height = max(part.height for part in statements)
        return Part(tuple(part.value for part in statements), statements[0].at, height)

    def _named(self, durable: Part | None, head: Part, block: Part) -> Part:
        id, params = head.value
        body = made(head.at, 1 + block.height, _body, block.value).value
        if durable is None:
            return made(head.at, 1 + block.height, NamedFlow, body, id, params)
        return made(head.at, 1 + block.height, DurableFlow, body, id, durable.value, params)

    def named(self, durable: Part | None, _: Token, head: Part, block: Part) -> Part:
        return self._named(durable, head, block)

    # --- who speaks ---

    def agents(self, at: Token, *agents: Part) -> Part:
        return made(at, 1, Flow, tuple(agent.value for agent in agents))

    def agent(self, name: Token, settings: tuple[Setting, ...] | None) -> Part:
        known = {"version": a_text, "selects": texts}
        fields = settle(name, settings or (), known)
        return made(name, 1, Agent, name.value, fields.get("version"), exits=tuple(fields.get("selects", ())))

    def members(self, at: Token, *branches: Part) -> Part:
        if at.value == "select":
            for branch in branches:
                if not flow_id(branch.value):
                    raise Misread("a branch of a select needs a name", branch.at, "nobody could pick it without one")
        return made(at, highest(branches), _MEMBERS[at.value], *(branch.value for branch in branches))

    def branch(self, durable: Part | None, at: Token, head: Part | None, block: Part) -> Part:
        if head is not None:
            return self._named(durable, head, block)._replace(at=at)
        if durable is not None:
            raise Misread("only a branch with a name is durable", durable.at, "name it: branch short")
        if len(block.value) == 1 and isinstance(block.value[0], TRIGGERS):
            return Part(block.value[0], at, 1 + block.height)
        return made(at, 1 + block.height, _body, block.value)

    def respond(self, at: Token) -> Part:
        return Part(Respond(), at)

    def notify(self, at: Token, name: Token) -> Part:
        return made(at, 1, Notify, name=name.value)

    def run(self, at: Token, name: Token, bind: Token | None) -> Part:
        return made(at, 1, Run, name.value, _value_of(bind))

    def every(self, at: Token, cron: Token, options: tuple[Setting, ...] | None, block: Part | None = None) -> Part:
        return self._trigger(at, Every, cron, cron.value, block, **settle(at, options or (), {"tz": a_text}))

    def at(self, at: Token, part: Part, block: Part | None = None) -> Part:
        when = made(part.at, part.height, as_time, given(part)).value
        return self._trigger(at, At, part.at, when, block, 0 if isinstance(when, datetime) else part.height)

    def webhook(self, at: Token, id: Token, block: Part | None = None) -> Part:
        return self._trigger(at, Webhook, id, id.value, block)

    def _trigger(
        self, at: Token, kind: Any, said: Token, when: object, block: Part | None, height: int = 0, **fields: Any
    ) -> Part:
        """`height` is that of the value among what was said."""
        body, inner = (block.value, block.height) if block is not None else ((), 0)
        return made(said, 1 + max(height, inner), kind, when, *body, **fields)._replace(at=at)

    # --- values that are named or said ---

    def effect(self, _: Token, name: Token) -> Token:
        return name

    def bind(self, effect: Token | None, name: Token, type: str | None, part: Part) -> Part:
        return made(name, 1 + part.height, Bind, name.value, given(part), type, _value_of(effect))

    def memo(self, effect: Token | None, at: Token, name: Token, type: str | None, part: Part) -> Part:
        if not isinstance(part.value, Call | AiSegment):
            raise Misread(
                "memo keeps what a call comes to", part.at, "write memo x = read(...), or x = ... without memo"
            )
        return made(at, 1 + part.height, Memo, name.value, part.value, type, _value_of(effect))

    def alone(self, part: Part) -> Part:
        if isinstance(part.value, Call | AiSegment | Peek):
            return part
        if part.plain or isinstance(part.value, Var | Obj | List_):
            raise Misread(
                "this alone does nothing", part.at, "write emit before it to say it, or name = before it to keep it"
            )
        return made(part.at, 1 + part.height, Emit, part.value)

    def emit(self, at: Token, part: Part) -> Part:
        return made(at, 1 + part.height, Emit, given(part))

    def return_(self, at: Token, part: Part | None) -> Part:
        return made(at, 1, Return) if part is None else made(at, 1 + part.height, Return, given(part))

    def raw(self, at: Token, part: Part) -> Part:
        if not part.plain:
            raise Misread("@json takes plain JSON", part.at)
        try:
            return made(at, 1 + part.height, from_wire, part.value)
        except InvalidWire as error:
            raise Misread(f"{error.message} (at {error.path or 'the top'})", at, error.remedy) from None

    # --- control ---

    def when(self, at: Token, cond: Part, then: Part, _: Token | None, otherwise: Part | None) -> Part:
        parts = (cond, then) if otherwise is None else (cond, then, otherwise)
        return made(at, highest(parts), When, given(cond), *then.value, otherwise=otherwise.value if otherwise else ())

    def unless(self, at: Token, cond: Part, block: Part) -> Part:
        return made(at, highest((cond, block)), Unless, given(cond), *block.value)

    def each(
        self, at: Token, item: Token, _: Token, items: Part, flat: Token | None, to: Token | None, block: Part
    ) -> Part:
        collected = {"collect": _value_of(to), "flat": flat is not None}
        return made(at, highest((items, block)), Each, item.value, given(items), *block.value, **collected)

    def repeat(self, at: Token, max: Token, options: tuple[Setting, ...] | None, to: Token | None, block: Part) -> Part:
        fields = settle(at, options or (), {"until": a_value})
        height = highest((block, *(part for _, part in options or ())))
        return made(at, height, Repeat, self._count(max), *block.value, collect=_value_of(to), **fields)

    def try_(self, at: Token, block: Part, _: Token | None, catch: Token | None, handler: Part | None) -> Part:
        if handler is None:
            return made(at, 1 + block.height, Try, *block.value)
        fields = {"catch": _value_of(catch), "handler": handler.value}
        return made(at, highest((block, handler)), Try, *block.value, **fields)

    def retry(self, at: Token, max: Token, options: tuple[Setting, ...] | None, to: Token | None, block: Part) -> Part:
        fields = settle(at, options or (), {"backoff": a_word, "delay": a_span})
        return made(at, 1 + block.height, Retry, self._count(max), *block.value, bind=_value_of(to), **fields)

    def timeout(self, at: Token, after: Token, to: Token | None, block: Part) -> Part:
        time = span(after) if after.type == "SPAN" else self.number(after)
        return made(at, 1 + block.height, Timeout, a_span(time), *block.value, bind=_value_of(to))

    def with_tools(self, at: Token, tools: Part, to: Token | None, block: Part) -> Part:
        return made(at, 1 + block.height, WithTools, texts(tools), *block.value, bind=_value_of(to))

    def throttle(self, at: Token, name: Token, options: tuple[Setting, ...], block: Part) -> Part:
        fields = settle(at, options, {"max": a_count, "per": a_span}, "max", "per")
        return made(at, 1 + block.height, Throttle, name.value, *block.value, **fields)

    def debounce(self, at: Token, name: Token, options: tuple[Setting, ...], block: Part) -> Part:
        fields = settle(at, options, {"wait": a_span}, "wait")
        return made(at, 1 + block.height, Debounce, name.value, *block.value, **fields)

    def assert_(self, at: Token, cond: Part, message: Token | None) -> Part:
        return made(at, 1 + cond.height, Assert, given(cond), _value_of(message) or "")

    def _count(self, token: Token) -> int:
        return a_count(self.number(token))

    # --- durability ---

    def await_(
        self,
        at: Token,
        bind: Token | None,
        type: str | None,
        source: Token,
        options: tuple[Setting, ...] | None,
    ) -> Part:
        fields = settle(at, options or (), {"when": a_value})
        height = highest(part for _, part in options or ())
        return made(at, height, Await, source.value, _value_of(bind), type, **fields)

    def checkpoint(self, at: Token, label: Token) -> Part:
        return Part(Checkpoint(label.value), at)

    def once(self, at: Token, label: Token, to: Token | None, block: Part) -> Part:
        return made(at, 1 + block.height, Once, label.value, *block.value, bind=_value_of(to))

    def scope(
        self, at: Token, bind: Token | None, part: Part | None, block: Part, _: Token | None, cleanup: Part | None
    ) -> Part:
        fields = {
            "acquire": None if part is None else given(part),
            "bind": _value_of(bind),
            "finally_": () if cleanup is None else cleanup.value,
        }
        parts = [one for one in (part, block, cleanup) if one is not None]
        return made(at, highest(parts), Scope, *block.value, **fields)

    def saga(self, at: Token, *arms: Part) -> Part:
        steps: list[Part] = []
        undone = True
        for arm in arms:
            word, body = arm.value
            if word == "step":
                steps.append(made(arm.at, arm.height, Step, *body))
            elif undone:
                why = "a step has one undo" if steps else "there is no step above this undo"
                raise Misread(why, arm.at, "an undo stands right after the block of its step")
            else:
                done = steps.pop()
                height = max(done.height, arm.height)
                steps.append(made(done.at, height, Step, *done.value.body, undo=body))
            undone = word == "undo"
        return made(at, highest(steps), Saga, *(step.value for step in steps))

    def arm(self, at: Token, block: Part) -> Part:
        return Part((at.value, block.value), at, 1 + block.height)
