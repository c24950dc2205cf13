"""Hypothesis strategies that make flows of the language: every kind of node, nested in every way that may run.

A strategy draws a `Plot`, a plain value that prints and shrinks well; `plot.flow(world)` builds the flow for one world.
The parts are numbered in the order they stand in: labels are "e1", "e2", ..., symbols "s1", ..., ids "n1", .... What an op
does is counted by its label and place.

Every plot has one right end, whatever crashes: an op that fails does so always, and stands where something catches it; or
in the first attempt of a `Retry`, as its place tells; or so many times, and stands where only the retries of the durable
flow see it. What fails so may not stand below a `Try`, which would tell one try from the next.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, TypeAlias, assert_never

from attrs import frozen
from hypothesis import strategies as st

import bb
from bb.flows.refs import ref
from bb.flows.tree import (
    AiSegment,
    Assert,
    At,
    Await,
    Bind,
    Chain,
    Checkpoint,
    Debounce,
    Each,
    Emit,
    Every,
    Memo,
    Once,
    Peek,
    Repeat,
    Retry,
    Return,
    Run,
    Saga,
    Scope,
    Step,
    Throttle,
    Timeout,
    Try,
    Unless,
    Webhook,
    When,
    WithTools,
)
from bb.ops import Op, op
from bb.place import current_place

DAY: Final = timedelta(days=1)
TRIES: Final = 3  # retries of the durable flow


class World:
    """What the ops of one flow did, and what is still to go wrong."""

    def __init__(self) -> None:
        self.did: Counter[tuple[str, str]] = Counter()
        """Label and place -> how often."""
        self.fails: Counter[str] = Counter()
        """Label -> how often it has failed on purpose."""

    def ran(self, label: str) -> str:
        """An op begins; gives its place."""
        place = current_place()
        path = place.path if place is not None else ""
        self.did[label, path] += 1
        return path


Bad: TypeAlias = Literal["", "always", "at first", "once"]
"""How an op fails: never, always, in the first attempt of a `Retry`, or the first time it is called."""


@frozen
class Act:
    """A call. `bind` names what it comes to."""

    bad: Bad = ""
    bind: bool = False


@frozen
class Say:
    """An `Emit`, or an agent, or a stage boundary."""

    how: Literal["emit", "agent", "respond", "peek", "stage", "notify", "run"] = "emit"


@frozen
class Branch:
    """A condition: a literal, a call, or a call that fails."""

    cond: Literal["yes", "no", "call", "bad"]
    then: tuple[Part, ...]
    otherwise: tuple[Part, ...] = ()


@frozen
class Loop:
    """An `Each` over so many items, or a `Repeat`; collecting what the rounds come to."""

    rounds: int
    body: tuple[Part, ...]
    repeat: bool = False


@frozen
class Around:
    """A statement around others that changes nothing when all goes well."""

    kind: Literal["timeout", "tools", "throttle", "debounce", "once", "memo", "named", "durable", "returns"]
    body: tuple[Part, ...]
    label: int = 0
    """Of a once or a memo: those with equal labels and bodies are one."""


@frozen
class Clean:
    """A scope: with a failing body it stands in a `Try`."""

    body: tuple[Part, ...]
    acquire: bool = False
    fails: bool = False


@frozen
class Undoing:
    """A saga of so many steps; `fails` at the end of the last one, and then it stands in a `Try`."""

    steps: tuple[tuple[Part, ...], ...]
    fails: bool = False
    flaky: bool = False
    """Whether each undo fails at first."""


@frozen
class Again:
    """A `Retry` whose body fails in its first attempt."""

    body: tuple[Part, ...]


@frozen
class Beside:
    """Members at once."""

    kind: Literal["all", "group", "one"]
    members: tuple[tuple[Part, ...], ...]


@frozen
class Route:
    """A router that picks one of the branches, or none, and the `Select` of these."""

    branches: tuple[tuple[Part, ...], ...]
    pick: int | None


@frozen
class Later:
    """A trigger, whose body starts in another run."""

    kind: Literal["every", "at", "webhook"]
    body: tuple[Part, ...]


@frozen
class Wait:
    """An `Await`, for which an event will come; only at the top."""


@frozen
class Mark:
    """A `Checkpoint`; only at the top."""


Part: TypeAlias = Act | Say | Branch | Loop | Around | Clean | Undoing | Again | Beside | Route | Later | Wait | Mark


@frozen
class Plot:
    """A flow to be built, durable, with the id "root"."""

    parts: tuple[Part, ...]

    def flow(self, world: World) -> bb.DurableFlow:
        """The flow for a world."""
        builder = _Builder(world)
        steps = builder.body(self.parts, caught=False)
        flow = Chain((Emit("begin"), *steps, Return([Peek(name) for name in builder.symbols])))
        return flow.with_id("root").durable(retries=TRIES)

    @property
    def events(self) -> tuple[tuple[str, object], ...]:
        """The events that its awaits are given."""
        return tuple(("news", {"number": n}) for n, part in enumerate(self.parts) if isinstance(part, Wait))


class _Builder:
    def __init__(self, world: World) -> None:
        self.world = world
        self.symbols: list[str] = []
        self._number = Counter[str]()
        self._op = _act(world)
        self._flaky = 0
        self._depth = 0
        self._beside_others = 0

    def body(self, parts: Sequence[Part], *, caught: bool, racing: bool = False) -> list[bb.AnyFlow]:
        """The statements; `caught`: a failure here would be told from a success."""
        self._depth += 1
        made = [flow for part in parts for flow in self._of(part, caught, racing)]
        self._depth -= 1
        return made

    def _of(self, part: Part, caught: bool, racing: bool) -> list[bb.AnyFlow]:
        match part:
            case Act(bad=bad, bind=bind):
                return self._acting(bad, bind, caught)
            case Say(how=how):
                return [self._saying(how)]
            case Branch(cond=cond, then=then, otherwise=otherwise):
                return self._branch(cond, self.body(then, caught=caught, racing=racing), otherwise, caught, racing)
            case Loop(rounds=rounds, body=body, repeat=repeat):
                inner, name = self.body(body, caught=caught, racing=racing), self._new("s")
                self.symbols.append(name)
                if repeat:
                    return [Repeat(rounds, *inner, self._call(), collect=name)]
                item = self._new("i")
                return [Each(item, list(range(rounds)), *inner, self._call(), collect=name)]
            case Around(kind=kind, body=body, label=label):
                return [self._around(kind, label, body, caught, racing)]
            case Clean() if racing:
                return [self._call()]
            case Clean(body=body, acquire=acquire, fails=fails):
                name = self._new("s")
                inner = self.body(body, caught=caught or fails)
                scope = Scope(
                    *inner,
                    *([self._call("always")] if fails else [self._call()]),
                    acquire=self._call() if acquire else None,
                    bind=name if acquire else None,
                    finally_=(self._call(), Emit(f"closed {name}")),
                )
                return [self._caught(scope) if fails else scope]
            case Undoing() if racing:
                return [self._call()]
            case Undoing(steps=steps, fails=fails, flaky=flaky):
                made = [
                    Step(
                        *self.body(step, caught=caught or fails), self._call(), undo=self._call("once" if flaky else "")
                    )
                    for step in steps
                ]
                if not fails:
                    return [Saga(*made)]
                return [self._caught(Saga(*made, Step(self._call("always"))))]
            case Again(body=body):
                inner = self.body(body, caught=True, racing=racing)
                return [Retry(3, *inner, self._call("at first"), backoff="none", bind=self._bound())]
            case Beside(kind=kind, members=members):
                return [self._beside(kind, members, caught, racing)]
            case Route(branches=branches, pick=pick):
                return self._route([self.body(one, caught=caught, racing=racing) for one in branches], pick)
            case Later(kind=kind, body=body):
                return [self._later(kind, self.body(body, caught=True))]
            case Wait():
                name = self._bound()
                return [Await("news", bind=name), self._call(ref(name).number)]
            case Mark():
                return [Checkpoint(self._new("mark"))]
            case unreachable:
                assert_never(unreachable)

    def _acting(self, bad: Bad, bind: bool, caught: bool) -> list[bb.AnyFlow]:
        match bad:
            case "always":
                return [self._caught(self._call("always"))]
            case "at first":
                return [Retry(2, self._call("at first"), backoff="none")]
            case "once" if not caught and self._flaky < TRIES:
                self._flaky += 1
                call = self._call("once")
            case _:
                call = self._call()
        return [Bind(self._bound(), call)] if bind else [call]

    def _saying(self, how: str) -> bb.AnyFlow:
        label = self._new("e")
        match how:
            case "agent":

                async def speak(turn: bb.Turn, _chat: bb.ModelChat[Any]) -> None:
                    self.world.ran(label)
                    await asyncio.sleep(0)
                    turn.reply(f"{label} speaks")

                return bb.Flow().with_agent(bb.Agent(label).on_message(speak))
            case "respond" if self._depth == 1:  # it delivers nothing beside others, and a once cannot hold it
                return bb.Respond()
            case "notify":

                async def send(_text: str) -> None:
                    self.world.ran(label)
                    await asyncio.sleep(0)

                return bb.Notify(send, label)
            case "run":
                return Run("sub", bind=self._bound())
            case "stage":
                return AiSegment(f"goal {label}", []).with_model(bb.FixedModel(f"{label} found"))
            case "peek":
                peek = Peek(self.symbols[-1] if self.symbols else "none")
                return Chain((peek, Emit(peek)))
            case _:
                return Emit(f"{label} said")

    def _branch(
        self, cond: str, then: list[bb.AnyFlow], otherwise: Sequence[Part], caught: bool, racing: bool
    ) -> list[bb.AnyFlow]:
        other = self.body(otherwise, caught=caught, racing=racing)
        match cond:
            case "yes":
                return [When(True, *then, self._call(), otherwise=other), Assert(True)]
            case "no":
                return [Unless(False, *then, self._call()), *other]
            case "call":
                return [When(self._call(), *then, self._call(), otherwise=other)]
            case _:
                return [When(self._call("always"), *then, self._call(), otherwise=other)]

    def _around(self, kind: str, label: int, body: Sequence[Part], caught: bool, racing: bool) -> bb.AnyFlow:
        if kind == "memo":
            return Memo(self._bound(), self._op(f"memo {label}", ""))
        if kind == "once" and label:
            return Once(f"once {label}", self._op(f"once {label}", ""))  # it may stand in several places
        inner = [*self.body(body, caught=caught, racing=racing), self._call()]
        match kind:
            case "timeout":
                return Timeout(DAY, *inner, bind=self._bound())
            case "tools" if not self._beside_others:
                return WithTools(["act"], *inner)
            case "throttle":
                return Throttle("t", *inner, max=10_000, per=timedelta(hours=1))
            case "debounce":
                return Debounce(self._new("d"), *inner, wait=timedelta(seconds=1))
            case "once":
                return Once(self._new("once"), *inner, bind=self._bound())
            case "named":
                return self._chained(inner).with_id(self._new("n"))
            case "durable":
                return self._chained(inner).with_id(self._new("n")).durable(retries=TRIES)
            case _:
                return self._chained([*inner, Return("returned")]).with_id(self._new("n"))

    def _beside(
        self, kind: Literal["all", "group", "one"], members: Sequence[Sequence[Part]], caught: bool, racing: bool
    ) -> bb.AnyFlow:
        self._beside_others += 1
        if kind == "one":
            winner = self._chained([*self.body(members[0], caught=True, racing=True), self._call()])
            self._beside_others -= 1
            return bb.One(winner, self._chained([self._call("hang")]))
        made = [self._chained([*self.body(one, caught=caught, racing=racing), self._call()]) for one in members]
        self._beside_others -= 1
        return bb.All(*made) if kind == "all" else bb.Group(*made)

    def _route(self, branches: Sequence[list[bb.AnyFlow]], pick: int | None) -> list[bb.AnyFlow]:
        label = self._new("e")
        ids = [self._new("n") for _ in branches]

        async def route(turn: bb.Turn, _chat: bb.ModelChat[Any]) -> None:
            self.world.ran(label)
            if pick is not None:
                turn.select(ids[pick % len(ids)])

        router = bb.Flow().with_agent(bb.Agent(label).selects(*ids).on_message(route))
        members = [self._chained([*one, self._call()]).with_id(id) for id, one in zip(ids, branches, strict=True)]
        return [router, bb.Select(*members)]

    def _later(self, kind: Literal["every", "at", "webhook"], body: list[bb.AnyFlow]) -> bb.AnyFlow:
        body = [*body, self._call()]
        match kind:
            case "every":
                return Every("0 0 1 1 *", *body)
            case "at":
                return At(datetime(2999, 1, 1, tzinfo=UTC), *body)
            case "webhook":
                return Webhook(self._new("hook"), *body)

    def _chained(self, parts: list[bb.AnyFlow]) -> Any:
        flow = parts[0] if len(parts) > 1 else Emit(self._new("e"))
        for part in parts[1:] if len(parts) > 1 else parts:
            flow = flow >> part
        return flow

    def _caught(self, flow: bb.AnyFlow) -> bb.AnyFlow:
        return Try(flow, catch=self._bound(), handler=(self._call(), Emit("caught")))

    def _call(self, bad: Any = "") -> Any:
        return self._op(self._new("e"), bad)

    def _bound(self) -> str:
        name = self._new("s")
        self.symbols.append(name)
        return name

    def _new(self, kind: str) -> str:
        self._number[kind] += 1
        return f"{kind}{self._number[kind]}"


def known(app: bb.App) -> bb.App:
    """The app, with the flow that a `Run` runs."""
    app.register(
        (Emit("sub begins") >> Bind("inner", _noted("sub")) >> Return({"inner": [ref("inner")]})).with_id("sub")
    )
    return app


@op("noted")
async def _noted(label: str) -> str:
    await asyncio.sleep(0)
    return f"{label} noted"


def _act(world: World) -> Op[..., Any]:
    @op()
    async def act(label: str, bad: object = "") -> object:
        path = world.ran(label)
        await asyncio.sleep(0)
        match bad:
            case "always":
                raise ConnectionError(label)
            case "at first" if "@" not in path:
                raise ConnectionError(label)
            case "once" if not world.fails[label]:
                world.fails[label] += 1
                raise ConnectionError(label)
            case "hang":
                await asyncio.Event().wait()
            case _:
                pass
        return {"label": label, "at": datetime(2026, 1, 2, tzinfo=UTC), "parts": (1, [2.5, None])}

    return act


# --- strategies ---

_BARE: Final[st.SearchStrategy[Part]] = st.one_of(
    st.builds(Act, st.sampled_from(["", "", "always", "at first", "once"]), st.booleans()),
    st.builds(Say, st.sampled_from(["emit", "agent", "respond", "peek", "stage", "notify", "run"])),
)
_AROUND: Final = ("timeout", "tools", "throttle", "debounce", "once", "memo", "named", "durable", "returns")


@st.composite
def bodies(draw: st.DrawFn, depth: int) -> tuple[Part, ...]:
    """A body of a few statements."""
    return tuple(draw(st.lists(parts(depth), max_size=2 if depth > 1 else 1)))


@st.composite
def parts(draw: st.DrawFn, depth: int = 3) -> Part:
    """Parts of every kind, nested so deep."""
    if not depth or draw(st.integers(0, 3)) == 0:
        return draw(_BARE)
    some = bodies(depth - 1)
    several = st.lists(some, min_size=1, max_size=3).map(tuple)
    flags = st.booleans()
    of_a_kind: list[st.SearchStrategy[Part]] = [
        st.builds(Branch, st.sampled_from(["yes", "no", "call", "bad"]), some, some),
        st.builds(Loop, st.integers(1, 3), some, flags),
        st.builds(Around, st.sampled_from(_AROUND), some, st.integers(0, 2)),
        st.builds(Clean, some, flags, flags),
        st.builds(Undoing, several, flags, flags),
        st.builds(Again, some),
        st.builds(Beside, st.sampled_from(["all", "group", "one"]), several),
        st.builds(Route, several, st.none() | st.integers(0, 2)),
        st.builds(Later, st.sampled_from(["every", "at", "webhook"]), some),
    ]
    return draw(st.one_of(of_a_kind))


@st.composite
def plots(draw: st.DrawFn, depth: int = 3) -> Plot:
    """Flows of the language."""
    top = st.one_of(parts(depth), parts(depth), parts(depth), st.builds(Wait), st.builds(Mark))
    return Plot(tuple(draw(st.lists(top, min_size=1, max_size=4))))


def everything() -> Plot:
    """One flow with each kind of part in each of its forms."""
    one, two = (Act(bind=True),), (Say("agent"),)
    some: tuple[Part, ...] = (
        *(Act(bad) for bad in ("", "always", "at first", "once")),
        *(Say(how) for how in ("emit", "agent", "respond", "peek", "stage", "notify", "run")),
        *(Branch(cond, one, two) for cond in ("yes", "no", "call", "bad")),
        *(Loop(2, one, repeat) for repeat in (False, True)),
        *(Around(kind, one) for kind in _AROUND),
        Clean(one, acquire=True),
        Clean(two, fails=True),
        Undoing((one, two)),
        Undoing((one,), fails=True, flaky=True),
        Again(one),
        *(Beside(kind, (one, two)) for kind in ("all", "group", "one")),
        Route((one, two), 1),
        *(Later(kind, one) for kind in ("every", "at", "webhook")),
        Wait(),
        Mark(),
    )
    return Plot(some)
