"""Flows to source text."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, assert_never

from bb.agents.agent import Agent
from bb.cron import spelled
from bb.errors import BBError, WiringError
from bb.flows.expressions import Lit
from bb.flows.names import SYMBOL, is_symbol
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
    Peek,
    Repeat,
    Respond,
    Retry,
    Return,
    Run,
    Saga,
    Scope,
    Select,
    Throttle,
    Timeout,
    Try,
    Unless,
    Webhook,
    When,
    WithTools,
    body_of,
    walk,
)
from bb.text.module import Module
from bb.text.spelling import (
    DEPTH,
    TooDeep,
    Unspellable,
    check_depth,
    count,
    label,
    literal,
    names,
    quoted,
    span,
    symbol,
    typed,
    value,
)
from bb.wire import to_wire

if TYPE_CHECKING:
    from bb.flows.expressions import Value

_BRANCHES: Final = {Select: "select", All: "parallel", One: "race", Group: "group"}


def format(flow: AnyFlow | Module, /) -> str:
    """The canonical source text of a flow or a module; it ends in a newline.

    A named flow is written as a module of one, any other flow as the statements it would be in one. What the language has
    no spelling for is written as `@json`. Models, handlers and the functions of senders have no spelling: their names stand
    for them.

    Raises:
        WiringError: a part has no name that could stand for it, holds what has no JSON form either, or is nested too deeply;
            the error names its path.
    """
    if isinstance(flow, Module):
        return "\n".join(_Writer(one).module() for one in flow.flows.values())
    if isinstance(flow, NamedFlow | DurableFlow):
        return _Writer(flow).module()
    return _Writer(flow).statements()


def _arrow(name: str | None) -> str:
    return "" if name is None else f" -> {symbol(name)}"


def _arguments(given: Sequence[str]) -> str:
    return f"({', '.join(given)})" if given else ""


def _steps(flow: AnyFlow, alone: tuple[type[AnyFlow], ...]) -> tuple[AnyFlow, ...]:
    """What stands under a name or a branch: the steps of a chain, else the flow itself.

    A chain of one step is that step, unless it is one of those that can stand there only as a chain, `alone`.
    """
    if isinstance(flow, Chain) and (len(flow.steps) > 1 or any(isinstance(step, alone) for step in flow.steps)):
        return flow.steps
    return (flow,)


_IN_BRANCHES: Final = (NamedFlow, DurableFlow)
_UNDER_NAMES: Final = (*_IN_BRANCHES, *TRIGGERS)


class _Writer:
    """The lines of one flow."""

    def __init__(self, root: AnyFlow) -> None:
        self._root = root
        self._lines: list[str] = []

    def module(self) -> str:
        """The text of a named flow at the margin."""
        return self._text((self._root,), "flow")

    def statements(self) -> str:
        """The text of any flow as statements."""
        return self._text(_steps(self._root, _IN_BRANCHES), "named")

    def _text(self, flows: Sequence[AnyFlow], word: str) -> str:
        for flow in flows:
            self._statement(flow, 0, word)
        return "\n".join((*self._lines, ""))

    def _line(self, level: int, text: str) -> None:
        self._lines.append("  " * level + text)

    def _statement(self, flow: AnyFlow, level: int, word: str = "named") -> None:
        """One statement; as `@json` if the language has no spelling for it."""
        begin = len(self._lines)
        try:
            check_depth(level + 1)
            self._spell(flow, level, word)
        except Unspellable:
            del self._lines[begin:]
            self._json(flow, level)
        except TooDeep:
            raise self._refused(
                flow, f"nested more than {DEPTH} deep", "make some of its parts flows of their own"
            ) from None

    def _json(self, flow: AnyFlow, level: int) -> None:
        try:
            text = literal(to_wire(flow), level + 2)
        except BBError as error:
            raise self._refused(flow, error.message, error.remedy) from error
        self._line(level, f"@json {text}")

    def _refused(self, flow: AnyFlow, message: str, remedy: str) -> WiringError:
        path = next(path for path, part in walk(self._root) if part is flow or body_of(part) is flow)
        return WiringError(f"{path.rsplit('/', 1)[-1]} has no spelling: {message}", path=path, remedy=remedy)

    def _block(self, flows: Sequence[AnyFlow], level: int) -> None:
        """The statements of a block; `level` is where its header stands."""
        if not flows:
            raise Unspellable
        for flow in flows:
            self._statement(flow, level + 1)

    def _later(self, flows: Sequence[AnyFlow], level: int) -> None:
        """The block of a trigger, or nothing."""
        if flows:
            self._block(flows, level)

    def _clause(self, word: str, flows: Sequence[AnyFlow], level: int) -> None:
        """A header of one word and its block, or nothing."""
        if flows:
            self._line(level, word)
            self._block(flows, level)

    def _name(self, word: str, flow: NamedFlow | DurableFlow, level: int) -> None:
        """A flow under its name."""
        if isinstance(flow, DurableFlow):
            self._line(level, _durable(flow.options))
        params = [f"{param.name}{typed(param.type)}" for param in flow.params]
        if not all(SYMBOL.fullmatch(param.name) for param in flow.params):
            raise Unspellable
        self._line(level, f"{word} {label(flow.id)}{_arguments(params)}")
        self._block(_steps(flow.body, _UNDER_NAMES), level)

    def _spell(self, flow: AnyFlow, level: int, word: str) -> None:
        """Write a statement.

        Raises:
            Unspellable: the language has no spelling for it.
            TooDeep: it is nested deeper than a text may be.
        """
        depth = level + 2  # of a value: one more than the statement it stands in

        def line(text: str) -> None:
            self._line(level, text)

        match flow:
            case NamedFlow() | DurableFlow():
                self._name(word, flow, level)
            case Chain():
                raise Unspellable  # a chain that its own name or branch does not take apart
            case Flow(agents=agents):
                line(" ".join(["agents", ", ".join(map(_agent, agents))]).rstrip())
            case Select(members=members) | All(members=members) | One(members=members) | Group(members=members):
                self._members(flow, members, level)
            case Respond():
                line("respond")
            case Notify(name=name):
                if not name:
                    raise Unspellable
                line(f"notify {label(name)}")
            case Every(cron=cron, tz=tz, body=body):
                line(f"every {quoted(cron)}{'' if tz is None else f', tz: {quoted(tz)}'}")
                self._later(body, level)
            case At(when=when, body=body):
                line(f"at {quoted(spelled(when)) if isinstance(when, datetime) else value(when, depth)}")
                self._later(body, level)
            case Webhook(id=id, body=body):
                line(f"webhook {quoted(id)}")
                self._later(body, level)
            case Run(flow=id, bind=bind):
                line(f"run {label(id)}{_arrow(bind)}")
            case Call() | AiSegment() | Peek():
                line(value(flow, depth - 1))
            case Bind(name=name, value=given, type=type, effect=effect):
                self._effect(effect, level)
                line(f"{symbol(name)}{typed(type)} = {value(given, depth)}")
            case Memo(name=name, call=given, type=type, effect=effect):
                self._effect(effect, level)
                line(f"memo {symbol(name)}{typed(type)} = {value(given, depth)}")
            case Emit(value=given):
                line(f"emit {value(given, depth)}")
            case Return(value=Lit(value=None)):
                line("return")
            case Return(value=given):
                line(f"return {value(given, depth)}")
            case Assert(cond=cond, message=message):
                line(f"assert {value(cond, depth)}{f', {quoted(message)}' if message else ''}")
            case When(cond=cond, then=then, otherwise=otherwise):
                line(f"when {value(cond, depth)}")
                self._block(then, level)
                self._clause("else", otherwise, level)
            case Unless(cond=cond, body=body):
                line(f"unless {value(cond, depth)}")
                self._block(body, level)
            case Each(item=item, items=items, body=body, collect=collect, flat=flat):
                if flat and collect is None:
                    raise Unspellable
                to = _arrow(collect).replace("->", "-> flat") if flat else _arrow(collect)
                line(f"each {symbol(item)} in {value(items, depth)}{to}")
                self._block(body, level)
            case Repeat(max=max, body=body, until=until, collect=collect):
                line(f"repeat {count(max)}{_option('until', until, depth)}{_arrow(collect)}")
                self._block(body, level)
            case Try(body=body, catch=catch, handler=handler):
                if catch is not None and not handler:
                    raise Unspellable
                line("try")
                self._block(body, level)
                self._clause("catch" if catch is None else f"catch {symbol(catch)}", handler, level)
            case Retry(max=max, body=body, backoff=backoff, delay=delay, bind=bind):
                default = Retry(1)
                how = "" if backoff == default.backoff else f", backoff: {backoff}"
                pause = "" if delay == default.delay else f", delay: {span(delay)}"
                line(f"retry {count(max)}{how}{pause}{_arrow(bind)}")
                self._block(body, level)
            case Timeout(after=after, body=body, bind=bind):
                line(f"timeout {span(after)}{_arrow(bind)}")
                self._block(body, level)
            case WithTools(tools=tools, body=body, bind=bind):
                line(f"with_tools {names(tools)}{_arrow(bind)}")
                self._block(body, level)
            case Throttle(name=name, max=max, per=per, body=body):
                line(f"throttle {quoted(name)}, max: {count(max)}, per: {span(per)}")
                self._block(body, level)
            case Debounce(name=name, wait=wait, body=body):
                line(f"debounce {quoted(name)}, wait: {span(wait)}")
                self._block(body, level)
            case Await(source=source, bind=bind, type=type, when=when):
                if bind is None and type is not None:
                    raise Unspellable
                to = "" if bind is None else f"{symbol(bind)}{typed(type)} = "
                line(f"await {to}{quoted(source)}{_option('when', when, depth)}")
            case Checkpoint(label=text):
                line(f"checkpoint {quoted(text)}")
            case Once(label=text, body=body, bind=bind):
                line(f"once {quoted(text)}{_arrow(bind)}")
                self._block(body, level)
            case Scope(acquire=acquire, bind=bind, body=body, finally_=finally_):
                if acquire is not None and bind is not None:
                    line(f"scope {symbol(bind)} = {value(acquire, depth)}")
                elif acquire is None and bind is None:
                    line("scope")
                else:
                    raise Unspellable
                self._block(body, level)
                self._clause("finally", finally_, level)
            case Saga(steps=steps):
                if not steps:
                    raise Unspellable
                line("saga")
                for step in steps:
                    self._line(level + 1, "step")
                    self._block(step.body, level + 1)
                    self._clause("undo", step.undo, level + 1)
            case unreachable:
                assert_never(unreachable)

    def _members(self, flow: Select | All | One | Group, members: Sequence[AnyFlow], level: int) -> None:
        if not members:
            raise Unspellable
        self._line(level, _BRANCHES[type(flow)])
        for member in members:
            if isinstance(member, NamedFlow | DurableFlow):
                self._statement(member, level + 1, "branch")
            else:
                self._line(level + 1, "branch")
                self._block(_steps(member, _IN_BRANCHES), level + 1)

    def _effect(self, effect: str | None, level: int) -> None:
        if effect is None:
            return
        if not is_symbol(effect):
            raise Unspellable
        self._line(level, f"@effect({effect})")


def _option(name: str, given: Value | None, depth: int) -> str:
    return "" if given is None else f", {name}: {value(given, depth)}"


def _agent(agent: Agent[Any]) -> str:
    if agent.name is None:
        raise Unspellable
    given = [] if agent.version is None else [f"version: {quoted(agent.version)}"]
    if agent.exits:
        given.append(f"selects: {names(agent.exits)}")
    return f"{label(agent.name)}{_arguments(given)}"


def _durable(options: DurableOptions) -> str:
    given = []
    if options.retries:
        given.append(f"retries: {count(options.retries)}")
    if options.ttl is not None:
        given.append(f"ttl: {span(options.ttl)}")
    if options.forward_compatible:
        given.append("forward_compatible: true")
    if options.resume_on_reregister:
        given.append("resume_on_reregister: true")
    return f"@durable{_arguments(given)}"
