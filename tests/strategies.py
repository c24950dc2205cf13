"""Hypothesis strategies that make flows: every kind, nested, named and unnamed, durable at any level.

A strategy draws a `Plot`, a plain value that prints and shrinks well. `plot.flow(world)` builds the flow; its agents count
in the `World` what they do, and always say the same for the same chat, so one plot can be built for several worlds and the
outcomes compared:

    @given(plots())
    def test_law(plot: Plot) -> None:
        calm, stormy = World(), World()
        stormy.fails["a2"] = 1                     # the second agent raises once, after it has said half
        one, other = plot.durable(calm), plot.durable(stormy)

The parts of a plot are numbered in declaration order: agents are "a1", "a2", ..., ids are "f1", "f2", ...; the root is
"root". `plot.agents` names those whose handlers can run. A `One` always has one member that can win; the others fail, or
wait until they are cancelled or something else has failed, so the winner is always the same. A router always picks what
its plot says. Nothing sleeps, and no agent draws on time or chance.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Literal, TypeAlias, assert_never

from attrs import field, frozen
from hypothesis import strategies as st

import bb

Manner: TypeAlias = Literal[
    "silent",  # says nothing
    "reply",
    "replies",  # twice
    "stream",
    "reply, stream",
    "stream, reply",  # a wiring error where the stream is the answer; only drawn with `contradict=True`
    "stream, call",  # asks the client for a tool after its text
    "call",
    "ask",  # no handler: relays the answer of its model
    "step",  # replies with the result of a remembered step
    "fail",  # raises every time
    "wait",  # until it is cancelled, or something has failed
]

STEADY: tuple[Manner, ...] = (
    "silent",
    "reply",
    "replies",
    "stream",
    "reply, stream",
    "stream, call",
    "call",
    "ask",
    "step",
)


class Failure(Exception):
    """What a scripted failure raises."""


class World:
    """What the agents of one built flow did, and what is to go wrong."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        """Agent name -> how often its handler, or its model where it has no handler, has begun."""
        self.steps: Counter[str] = Counter()
        """Agent name -> how often the function of its step ran."""
        self.sent: list[str] = []
        """What every `Notify` sent, in order."""
        self.fails: Counter[str] = Counter()
        """Agent name -> how often it is still to raise `Failure`, half way through what it says."""
        self.failed = False
        """Whether anything was raised on purpose."""

    def begin(self, name: str) -> None:
        """An agent begins."""
        self.calls[name] += 1

    def trip(self, name: str) -> None:
        """Raise if the agent is to fail."""
        if self.fails[name] > 0:
            self.fails[name] -= 1
            self.failed = True
            raise Failure(name)

    async def send(self, text: str) -> None:
        """The function of every `Notify`."""
        self.sent.append(text)


@frozen
class Voice:
    """One agent: how it speaks, and how its text ends."""

    manner: Manner = "reply"
    tail: str = ""


@frozen
class Leaf:
    """An agent flow."""

    voices: tuple[Voice, ...] = (Voice(),)


@frozen
class Boundary:
    """A `Respond`."""


@frozen
class Tell:
    """A `Notify`."""


@frozen
class Steps:
    """A chain."""

    parts: tuple[Part, ...]


@frozen
class Beside:
    """An `All` or a `Group`."""

    kind: Literal["all", "group"]
    parts: tuple[Part, ...]


@frozen
class Race:
    """A `One` that `winner` wins, at position `place` among the losers."""

    winner: Part
    losers: tuple[Literal["fail", "wait"], ...] = ()
    place: int = 0


@frozen
class Route:
    """A router and its `Select`; `pick` is the index of the member it picks, None for no pick."""

    members: tuple[Part, ...]
    pick: int | None = 0
    respond: bool = False
    """Whether a `Respond` stands between them."""


@frozen
class Named:
    """A part with an id, and with options it is durable."""

    part: Part
    options: bb.DurableOptions | None = None


Part: TypeAlias = Leaf | Boundary | Tell | Steps | Beside | Race | Route | Named


@frozen
class Plot:
    """A flow to be built."""

    part: Part

    def flow(self, world: World) -> bb.AnyFlow:
        """The flow itself, which need not have an id."""
        return _Builder(world).build(self.part)

    def named(self, world: World, id: str = "root") -> bb.NamedFlow:
        """The flow under an id, durable only where its parts are."""
        flow = self.flow(world)
        return (
            flow >> bb.Flow() if isinstance(flow, bb.DurableFlow | bb.Every | bb.At | bb.Webhook) else flow
        ).with_id(id)

    def durable(
        self,
        world: World,
        id: str = "root",
        *,
        forward_compatible: bool = False,
        retries: int = 0,
        ttl: timedelta | None = None,
    ) -> bb.DurableFlow:
        """The flow as a durable one."""
        return self.named(world, id).durable(forward_compatible=forward_compatible, retries=retries, ttl=ttl)

    @property
    def agents(self) -> tuple[str, ...]:
        """The names of the agents that run when nothing fails, those of losing members of a `One` left out."""
        builder = _Builder(World())
        builder.build(self.part)
        return tuple(builder.live)


@frozen
class _Builder:
    """Builds a part for a world, numbering as it goes."""

    world: World
    live: list[str] = field(factory=list)
    _agents: list[str] = field(factory=list)
    _ids: list[str] = field(factory=list)

    def build(self, part: Part, *, runs: bool = True) -> bb.AnyFlow:
        match part:
            case Leaf(voices=voices):
                return bb.Flow().with_agent(*(self._agent(voice, runs=runs) for voice in voices))
            case Boundary():
                return bb.Respond()
            case Tell():
                return bb.Notify(self.world.send)
            case Steps(parts=parts):
                return _chained([self.build(step, runs=runs) for step in parts])
            case Beside(kind=kind, parts=parts):
                members = [self.build(member, runs=runs) for member in parts]
                return bb.All(*members) if kind == "all" else bb.Group(*members)
            case Race(winner=winner, losers=losers, place=place):
                members = [self.build(Leaf((Voice(loser),)), runs=False) for loser in losers]
                members.insert(place, self.build(winner, runs=runs))
                return bb.One(*members)
            case Route():
                return self._route(part, runs=runs)
            case Named(part=inner, options=options):
                return self._named(self.build(inner, runs=runs), options)
            case unreachable:
                assert_never(unreachable)

    def _route(self, part: Route, *, runs: bool) -> bb.AnyFlow:
        name = self._new_agent(runs=runs)
        members = [
            self._named(self.build(member, runs=runs and i == part.pick), None) for i, member in enumerate(part.members)
        ]
        ids = [member.id for member in members if isinstance(member, bb.NamedFlow | bb.DurableFlow)]
        picked = None if part.pick is None else ids[part.pick]
        router = bb.Flow().with_agent(bb.Agent(name).selects(*ids).on_message(_router(self.world, name, picked)))
        between = [bb.Respond()] if part.respond else []
        return _chained([router, *between, bb.Select(*members)])

    def _named(self, flow: bb.AnyFlow, options: bb.DurableOptions | None) -> bb.AnyFlow:
        if isinstance(flow, bb.DurableFlow | bb.Every | bb.At | bb.Webhook):
            return flow
        self._ids.append("")
        named = flow.with_id(f"f{len(self._ids)}")
        if options is None:
            return named
        return named.durable(forward_compatible=options.forward_compatible, retries=options.retries, ttl=options.ttl)

    def _agent(self, voice: Voice, *, runs: bool) -> bb.Agent:
        name = self._new_agent(runs=runs)
        if voice.manner == "ask":
            return bb.Agent(name).with_model(_Counted(self.world, name, voice.tail))
        return bb.Agent(name).on_message(_speaker(self.world, name, voice))

    def _new_agent(self, *, runs: bool) -> str:
        name = f"a{len(self._agents) + 1}"
        self._agents.append(name)
        if runs:
            self.live.append(name)
        return name


def _chained(flows: Sequence[bb.AnyFlow]) -> bb.AnyFlow:
    chain = flows[0]
    for flow in flows[1:]:
        chain = chain >> flow
    return chain


def _text(name: str, heard: int, voice_tail: str) -> str:
    return f"{name} heard {heard}{voice_tail}"


def _pieces(text: str) -> list[str]:
    return [text[i : i + 4] for i in range(0, len(text), 4)]


Handler: TypeAlias = Callable[[bb.Turn, bb.ModelChat], Awaitable[None]]


def _router(world: World, name: str, picked: str | None) -> Handler:
    async def route(turn: bb.Turn, chat: bb.ModelChat) -> None:
        world.begin(name)
        world.trip(name)
        if picked is not None:
            turn.select(picked)

    return route


def _speaker(world: World, name: str, voice: Voice) -> Handler:
    async def speak(turn: bb.Turn, chat: bb.ModelChat) -> None:
        world.begin(name)
        # what others in a group have said by now depends on timing
        text = _text(name, 0 if turn.in_group else len(turn.messages), voice.tail)
        match voice.manner:
            case "silent":
                world.trip(name)
            case "reply":
                turn.reply(text, value=(name, len(text)))
                world.trip(name)
            case "replies":
                turn.reply(f"first, {text}")
                world.trip(name)
                turn.reply(text)
            case "stream":
                await _stream(turn, text, world, name)
            case "reply, stream":
                turn.reply(f"before, {text}")
                await _stream(turn, text, world, name)
            case "stream, reply":
                await _stream(turn, text, world, name)
                turn.reply(f"after, {text}")
            case "stream, call":
                await _stream(turn, text, world, name)
                turn.call(bb.ToolCall(f"call-{name}", "lookup"))
            case "call":
                turn.call(bb.ToolCall(f"call-{name}", "lookup"))
                world.trip(name)
            case "step":
                turn.reply(await turn.step("work", _step(world, name), text))
                world.trip(name)
            case "fail":
                raise Failure(name)
            case "wait":
                while not world.failed:  # noqa: ASYNC110 - an Event would tie the world to one loop
                    await asyncio.sleep(0.001)
                raise Failure(name)
            case "ask":
                raise AssertionError("an asking agent has no handler")

    return speak


async def _stream(turn: bb.Turn, text: str, world: World, name: str) -> None:
    pieces = _pieces(text)
    async with turn.stream() as out:
        await out.write(pieces[0])
        world.trip(name)
        for piece in pieces[1:]:
            await out.write(piece)


def _step(world: World, name: str) -> Callable[[str], Awaitable[str]]:
    async def work(text: str) -> str:
        world.steps[name] += 1
        return f"{text}, worked"

    return work


class _Counted:
    """A model that says one text in pieces, and counts."""

    def __init__(self, world: World, name: str, tail: str) -> None:
        self._world, self._name, self._tail = world, name, tail

    async def stream(self, request: bb.ModelRequest, /) -> AsyncIterator[bb.Chunk]:
        self._world.begin(self._name)
        pieces = _pieces(_text(self._name, 0, self._tail))
        yield pieces[0]
        self._world.trip(self._name)
        for piece in pieces[1:]:
            yield piece
        yield bb.Usage(input=2, output=len(pieces))


# --- strategies ---


def voices(*manners: Manner) -> st.SearchStrategy[Voice]:
    """Agents of these manners."""
    # texts that end in what separates stages, in blanks or in wide characters are where joining goes wrong
    return st.builds(Voice, st.sampled_from(manners or STEADY), st.sampled_from(["", ".", " ", "\n\n", "é☃"]))


def durable_options() -> st.SearchStrategy[bb.DurableOptions]:
    """Options of inner durable flows; no retries, since those pause."""
    return st.builds(bb.DurableOptions, forward_compatible=st.booleans())


def parts(*, max_leaves: int = 8, durable: bool = True, contradict: bool = False) -> st.SearchStrategy[Part]:
    """Parts of every kind; `durable` allows durable ones, `contradict` agents that reply after they have streamed."""
    manners: tuple[Manner, ...] = (*STEADY, "stream, reply") if contradict else STEADY
    leaf = st.builds(Leaf, st.lists(voices(*manners), min_size=0, max_size=3).map(tuple))
    single = st.builds(lambda voice: Leaf((voice,)), voices(*manners))  # most flows have one agent
    base: st.SearchStrategy[Part] = st.one_of(single, leaf, st.builds(Boundary), st.builds(Tell))
    options = st.one_of(st.none(), durable_options()) if durable else st.none()

    def extend(inner: st.SearchStrategy[Part]) -> st.SearchStrategy[Part]:
        some = st.lists(inner, min_size=1, max_size=4).map(tuple)
        few = st.lists(inner, min_size=1, max_size=3).map(tuple)
        return st.one_of(
            st.builds(Steps, some),
            st.builds(Named, inner, options),
            st.builds(Beside, st.sampled_from(["all", "group"]), few),
            st.builds(
                Race,
                inner,
                st.lists(st.sampled_from(["fail", "wait"]), max_size=2).map(tuple),
                st.integers(0, 2),
            ),
            few.flatmap(
                lambda members: st.builds(
                    Route, st.just(members), st.sampled_from([*range(len(members)), None]), st.booleans()
                )
            ),
        )

    return st.recursive(base, extend, max_leaves=max_leaves)


def plots(*, max_leaves: int = 8, durable: bool = True, contradict: bool = False) -> st.SearchStrategy[Plot]:
    """Flows of every shape; see `parts`."""
    return st.builds(Plot, parts(max_leaves=max_leaves, durable=durable, contradict=contradict))
