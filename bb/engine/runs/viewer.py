"""`Viewer`: the kept runs as people look at them: page by page, one as a picture, and one place of it in full."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, assert_never, cast

from attrs import frozen

from bb.engine.memory.trees import kept_form
from bb.engine.outcome import RunInfo
from bb.engine.plan import Plan
from bb.engine.runs.archive import Archive
from bb.engine.runs.bodies import plan_of
from bb.engine.runs.marks import Marks
from bb.engine.runs.picture import Picture, steps_of
from bb.engine.runs.runner import Runner
from bb.engine.runs.shape import Shaper
from bb.errors import CorruptRecord, UnknownRun
from bb.flows.tree import At, Every, Webhook
from bb.identity import Tree, tree
from bb.log import RUNS, millis, run_stream
from bb.log.delta import load_message
from bb.logs import error
from bb.messages import Message

_DIGITS: Final = 19  # of a time that a page begins at; what is longer is later than every run


@frozen
class Page:
    """Some of the kept runs, those first that changed last."""

    runs: tuple[RunInfo, ...]
    kept: int
    """How many runs there are in all."""
    next: str | None
    """Where the next page begins; None after the last."""


@frozen
class Remembered:
    """A journal entry of one handler: an ask, a tool run or a step."""

    kind: str
    name: str
    value: object
    """In codec form."""


@frozen
class Detail:
    """What was said, and what came out, at one place of a run."""

    path: str
    messages: tuple[Message, ...]
    selected: str | None
    has_value: bool
    value: object
    """In codec form, since its class may be unknown here."""
    entries: tuple[Remembered, ...]


class Viewer:
    """Looks at the kept runs of one app, and changes nothing."""

    def __init__(self, runner: Runner, archive: Archive, plans: Mapping[str, Plan]) -> None:
        self._store = runner.store
        self._archive = archive
        self._plans = plans

    async def page(self, *, flow: str = "", status: str = "", text: str = "", start: str = "", limit: int = 50) -> Page:
        """The runs that changed last, as far as they are of this flow and status and have this text in their id or that of their session.

        Only as many logs are read as it takes to find `limit` of them; one that cannot be read is logged and left out.
        `start` is the `next` of the page before.

        Raises:
            StoreError: the store cannot be read.
        """
        infos = await self._store.list(RUNS)
        turns = sorted(((millis(info.changed), info.name, info) for info in infos), key=lambda t: t[:2], reverse=True)
        at, _, name = start.partition("-")
        first = (int(at[:_DIGITS]), RUNS + name) if at.isdecimal() else None
        out: list[RunInfo] = []
        for changed, stream, info in turns:
            if first is not None and (changed, stream) > first:
                continue
            if len(out) == limit:
                return Page(tuple(out), len(infos), f"{changed}-{stream.removeprefix(RUNS)}")
            try:
                run = await self._archive.info(info)
            except UnknownRun:
                continue  # dropped since the list was made
            except CorruptRecord as problem:
                error("a run cannot be read", run=info.name, error=str(problem))
                continue
            if text not in run.run_id and text not in run.session_id:
                continue
            if (not flow or run.flow == flow) and (not status or run.status == status):
                out.append(run)
        return Page(tuple(out), len(infos), None)

    def trigger(self, flow: str) -> str:
        """What starts the runs of a flow by themselves, in a few words; empty if nothing does."""
        plan = self._plans.get(flow)
        if plan is None or plan.cause is None:
            return ""
        match plan.cause.trigger:
            case Every(cron=cron):
                return f"every {cron}"
            case Webhook(id=id):
                return f"webhook {id}"
            case At():
                return "at"
            case unreachable:
                assert_never(unreachable)

    async def picture(self, run_id: str) -> Picture:
        """A run as the tree of its flow.

        Raises:
            UnknownRun: there is none.
            CorruptRecord: it cannot be read.
        """
        marks = await self._marks(run_id)
        history = marks.history
        started, ended = history.started, history.ended
        flow = started.flow if started is not None else ended.flow if ended is not None else ""
        plan = plan_of(self._plans, history)
        held = await self._store.holder(run_stream(run_id)) is not None
        trees = {scope.path: form for scope in marks.current() if (form := await self._tree(scope.signature))}
        segment = self._root(marks, plan, flow)
        shaper = Shaper(marks, trees, self._registered)
        root = shaper.root(tree(plan.flow) if plan is not None else None, segment)
        scope = history.scope(segment)
        changed = plan is not None and scope is not None and scope.signature != plan.root.signature
        return Picture(
            info=self._archive.told(history, held=held),
            session_id=started.session if started is not None else run_id,
            attempts=tuple(marks.attempts),
            root=steps_of(marks, root, held=held),
            trigger=self.trigger(flow),
            asks=history.parked.prompt if history.parked is not None else "",
            is_known=plan is not None,
            is_changed=changed,
            length=history.length,
        )

    async def detail(self, run_id: str, path: str) -> Detail:
        """What was said, and what came out, at one place; with the path "" what the run was given.

        Raises:
            UnknownRun: there is no such run, or nothing is remembered there.
            CorruptRecord: it cannot be read.
        """
        marks = await self._marks(run_id)
        if not path:
            return self._given(marks)
        mark = marks.saved.get(path)
        entries = {key: value for scope in marks.current() for key, value in scope.entries.get(path, {}).items()}
        if mark is None and not entries:
            raise UnknownRun(f"run {run_id} remembers nothing at {path!r}")
        form = cast("dict[str, object]", mark.form) if mark is not None else {}
        delta = cast("dict[str, object]", form.get("d", form))
        value = form.get("l", delta.get("v"))
        return Detail(
            path,
            _messages(delta),
            cast("str | None", delta.get("s")),
            "v" in delta or "l" in form,
            value,
            tuple(_remembered(key, value) for key, value in entries.items()),
        )

    def _given(self, marks: Marks) -> Detail:
        started = marks.history.started
        form = cast("dict[str, object]", started.given) if started is not None else {}
        rest = {_GIVEN[key]: value for key, value in form.items() if key in _GIVEN}
        return Detail("", _messages(form), None, bool(rest), rest or None, ())

    async def _marks(self, run_id: str) -> Marks:
        records = await self._store.read(run_stream(run_id))
        if not records:
            raise UnknownRun(f"no run {run_id} is kept", remedy="App.runs() lists those that are")
        return Marks.of(run_id, records)

    async def _tree(self, signature: str) -> Tree | None:
        return await kept_form(self._store, signature)

    def _registered(self, id: str) -> Tree | None:
        plan = self._plans.get(id)
        return tree(plan.flow) if plan is not None else None

    @staticmethod
    def _root(marks: Marks, plan: Plan | None, flow: str) -> str:
        """The segment of the root: as it is registered, or else what the places of the run begin with."""
        if plan is not None:
            return plan.root.segment
        begun = {place.partition("/")[0].partition("@")[0] for place in marks.places}
        return begun.pop() if len(begun) == 1 else flow


_GIVEN: Final = {"r": "request", "p": "payload", "d": "metadata", "a": "params", "s": "symbols"}


def _messages(form: Mapping[str, object]) -> tuple[Message, ...]:
    return tuple(load_message(message) for message in cast("list[list[object]]", form.get("m", [])))


def _remembered(key: str, value: object) -> Remembered:
    """A journal entry by its key: `agent/kind/name/fingerprint/number`."""
    _, kind, rest = key.split("/", 2)
    return Remembered(kind, rest.rsplit("/", 2)[0], value)
