"""`Session`: a conversation with a flow, turn by turn."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Final, cast

from attrs import evolve, frozen

from bb.codec import fingerprint
from bb.engine.memory.mailbox import answer, answered_in, given_to
from bb.engine.outcome import Outcome, SessionTurn
from bb.engine.plan import Plan
from bb.engine.runs.ask import Ask, check_tenant_of, in_use, other_input
from bb.engine.runs.conversations import Begun, Conversations, run_of
from bb.errors import CorruptRecord, InputConflict, InvalidInput, NotWaiting, WiringError
from bb.flows.tree import DurableFlow
from bb.ids import fresh_id, scoped
from bb.log import Forgotten, Given, History, moment
from bb.log import Parked as Leg
from bb.messages import NO_USAGE, Input, InputLike, to_input
from bb.redaction import redacted

_ROUND: Final = re.compile(r"[#@]")  # begins the number of an iteration or an attempt; no id holds these signs
_START: Final = timedelta(minutes=1)  # that a start may take between putting itself on record and its run


@frozen
class Accepted:
    """A turn that is on record, and is yet to be run."""

    turn_id: str
    run: Callable[[], Awaitable[SessionTurn]]


class Session:
    """A conversation with one flow in one session.

    Nothing is held between the turns: any process over the same store goes on with it. The same turn again, by its id or
    for want of one by its reply, gives the same turn, and goes on with it where a crash cut it off.
    """

    def __init__(
        self,
        conversations: Conversations,
        plan: Plan,
        session_id: str,
        *,
        detach: bool = False,
        tenant: str = "",
    ) -> None:
        if not plan.durable or not isinstance(plan.flow, DurableFlow):
            raise WiringError(
                f"flow {plan.name!r} is not durable, so a conversation with it would not outlive a turn",
                flow=plan.name,
                remedy="call .durable() on it",
            )
        self.session_id = session_id
        self.flow = plan.name
        self._plan = plan
        self._detach = detach
        self._tenant = tenant
        self._conversations = conversations
        self._runner = conversations.runner

    async def start(
        self,
        input: InputLike | None = None,
        *,
        params: Mapping[str, object] | None = None,
        turn_id: str | None = None,
        replace: bool = False,
    ) -> SessionTurn:
        """Start a conversation, and run it to its first question or to its end.

        Args:
            input: what the flow starts with.
            params: values that handlers read from `turn.params`, and parameters of the flow.
            turn_id: tells this start from others; by default it is the same one as long as the input is and nobody has replied.
            replace: abandon what is parked in the session first.

        Raises:
            AlreadyParked: a run of the session is parked, or its reply failed or was cut off.
            InputConflict: this turn started with another input.
            NotWaiting: this turn started a conversation that was given up.
            CorruptRecord: what is parked cannot be read; `abandon` gives it up.
            BBError: the flow failed; the same start goes on with it.
        """
        given = Given(Input() if input is None else to_input(input), dict(params or {}))
        accepted = await self._start(given, self._turn_id(turn_id), replace=replace)
        return await accepted.run()

    async def _start(self, given: Given, turn_id: str | None, *, replace: bool = False) -> Accepted:
        asked = given.fingerprint(self._runner.codec)
        turn, run_id = await self._begin(asked, turn_id, replace)
        ask = self._ask(run_id, given, opening=self._opening(replace))
        history = await self._history(run_id)
        if history is not None and history.started is not None:
            if history.started.flow != self.flow:
                raise in_use(ask, history.started.flow)
            if history.started.fingerprint != asked:
                raise other_input(ask)
        if history is not None and history.ended is not None and history.ended.status == "cancelled":
            raise NotWaiting(
                f"the conversation that turn {turn} started was given up",
                flow=self.flow,
                remedy="start another, with another turn id",
            )
        return Accepted(turn, partial(self._turn, ask, turn, history, 0))

    async def send(self, reply: str, *, turn_id: str | None = None) -> SessionTurn:
        """Answer the question at hand, and run to the next one or to the end.

        When the flow failed on a reply, the same turn again goes on with it, and another one answers the question anew:
        what came of the failed one is forgotten, but its effects were made.

        Args:
            reply: what the user says, word for word.
            turn_id: tells this turn from others; by default it is the same one for the same reply to the same question.

        Raises:
            NotWaiting: nothing is asked, or it was answered by another turn.
            InputConflict: this turn came with another reply before.
            GraphChanged: the flow has changed, and the one that was parked cannot be restored.
            CorruptRecord: what is parked cannot be read; `abandon` gives it up.
            Interruption: the turn was cut off; the same one goes on with it.
            BBError: the flow failed.
        """
        if not isinstance(reply, str):
            raise InvalidInput(f"{type(reply).__name__} is no reply", remedy="give the text that the user said")
        turn = self._turn_id(turn_id)
        history = await self._of_turn(turn, await self._found())
        if history is None:
            raise self._not_waiting("no conversation was started")
        accepted = await self._send(history, reply, turn)
        return await accepted.run()

    async def _send(self, history: History, reply: str, turn_id: str | None) -> Accepted:
        run_id, legs = history.run_id, history.legs
        if not legs:
            raise self._not_waiting("it is over" if history.ended is not None else "it has asked nothing yet")
        leg = legs[-1]
        turn = turn_id or fingerprint([run_id, leg.path, reply])
        ask = self._ask(run_id)
        heard = history.turns.get(turn)
        if heard is not None:
            if _turn_at(history, heard) != turn:
                raise self._not_waiting(f"turn {turn} failed, and another took its place")
            await self._check_reply(history, history.legs[_place_of(history, heard)], turn, reply)
            return Accepted(turn, partial(self._turn, ask, turn, history, _place_of(history, heard) + 1))
        if history.ended is not None:
            raise self._not_waiting("it is over")
        rows = self._runner.sessions.rows(self.session_id)
        give = partial(answer, rows, leg.source, run_id, leg.path, reply, turn)
        if history.failed and history.parked is None:
            await self._answer_anew(history, leg, partial(give, anew=True))
        else:
            await give()
        await self._check_reply(history, leg, turn, reply)
        return Accepted(turn, partial(self._turn, ask, turn, None, _place_of(history, leg.path) + 1))

    async def accept(self, said: InputLike, *, turn_id: str | None = None) -> Accepted:
        """Take in what somebody says, for a channel that only relays: the answer to what is asked, or else a start.

        Of an answer the last message of the user counts. The turn is on record when this returns, and not run yet.

        Raises: as `start` and `send` do for what they refuse.
        """
        input, turn = to_input(said), self._turn_id(turn_id)
        if turn is not None and await self._history(run_of(self.session_id, self.flow, turn)) is not None:
            return await self._start(Given(input, {}), turn)
        history = await self._of_turn(turn, await self._found())
        if history is not None and (turn in history.turns or (history.ended is None and history.legs)):
            replies = [message.content for message in input.messages if message.role == "user"]
            if not replies:
                raise InvalidInput("nothing was said by the user", remedy="send a message of the user")
            return await self._send(history, replies[-1], turn)
        return await self._start(Given(input, {}), turn)

    async def was_answered(self, turn_id: str) -> bool:
        """Whether a turn began a conversation in which there was a reply since."""
        turn = self._turn_id(turn_id)
        history = await self._history(run_of(self.session_id, self.flow, turn)) if turn is not None else None
        return history is not None and bool(history.turns)

    async def waiting_for(self) -> str | None:
        """The source that a reply is for, also while one is being worked on or has failed; None: nothing is asked.

        Raises:
            CorruptRecord: it cannot be read; `abandon` gives it up.
        """
        history = await self._found()
        if history is None or history.ended is not None or not history.legs:
            return None
        return history.legs[-1].source

    async def current(self) -> SessionTurn | None:
        """The turn at hand, for a channel that no longer knows it: what is asked now. None: nothing is open, so `start`.

        A turn that was cut off is gone on with. One that failed is not: the question before it is asked again.

        Raises:
            CorruptRecord: what is parked cannot be read; `abandon` gives it up.
            Interruption: the turn was cut off again.
            BBError: the flow failed.
        """
        history = await self._found()
        if history is None or history.ended is not None:
            return None
        ask = self._ask(history.run_id)
        if history.failed and history.parked is None and history.legs:
            outcome = await self._then(ask, history.legs[-1])
        else:
            outcome = await self._runner.go_on(ask)
            history = await self._conversations.archive.history(history.run_id)
        if outcome.waiting_for is None:
            return SessionTurn(outcome.answer, None, outcome, await self._turn_before(history, len(history.legs)))
        leg = history.legs[-1]
        return SessionTurn(leg.prompt, leg.source, outcome, await self._turn_before(history, len(history.legs) - 1))

    async def abandon(self) -> None:
        """Give up for good what is parked: it is cancelled, and no event or reply reaches it any more.

        Raises:
            StoreError: the store failed.
        """
        with suppress(CorruptRecord):  # what cannot be read can still be given up
            await self._found()
        await self._conversations.abandon(self.session_id, self.flow)

    # --- starting ---

    async def _begin(self, asked: str, turn: str | None, replace: bool) -> tuple[str, str]:
        """The turn and the run of a start: those of an earlier one that it repeats, or new ones on record."""
        while True:
            begun = await self._conversations.begun(self.session_id, self.flow)
            self._checked(begun.history if begun is not None else None)
            if turn is not None:
                run_id = run_of(self.session_id, self.flow, turn)
                if (begun is not None and begun.run_id == run_id) or await self._history(run_id) is not None:
                    return turn, run_id
            elif begun is not None and not replace and self._is_same(begun, asked):
                return begun.row.turn, begun.run_id
            await self._conversations.make_room(self.session_id, replace=replace)
            new = turn if turn is not None else fresh_id()
            last = begun.row if begun is not None else None
            if await self._conversations.begin(self.session_id, self.flow, new, asked, last):
                return new, run_of(self.session_id, self.flow, new)

    def _is_same(self, begun: Begun, asked: str) -> bool:
        history = begun.history
        if begun.row.fingerprint != asked:
            return False
        if history is None:  # between its record and its run; one that is older has been dropped since
            return self._runner.clock.now() - moment(begun.row.at) < _START
        unanswered = history.parked is not None or not history.legs
        return history.ended is None and unanswered and len(history.legs) <= 1

    def _opening(self, replace: bool) -> Callable[[], Awaitable[None]] | None:
        if not self._plan.waits:
            return None
        return partial(self._conversations.make_room, self.session_id, replace=replace)

    # --- going on ---

    async def _turn(self, ask: Ask, turn: str, history: History | None, number: int) -> SessionTurn:
        """The turn that ends where the run parks for the `number`-th time, or ends; the run goes on if it is not there yet."""
        outcome: Outcome | None = None
        if (
            history is None
            or len(history.legs) <= number
            or (history.parked is not None and len(history.legs) == number + 1)
        ):
            outcome = await self._runner.go_on(ask)
            history = await self._history(ask.run_id)
        if history is not None and number < len(history.legs):
            leg = history.legs[number]
            if outcome is None or history.parked is not leg:
                outcome = await self._then(ask, leg)
            return SessionTurn(leg.prompt, leg.source, outcome, turn)
        assert outcome is not None  # the run was just gone on with
        return SessionTurn(outcome.answer, outcome.waiting_for, outcome, turn)

    async def _turn_before(self, history: History, number: int) -> str:
        """The id of the turn that led to where the run parked for the `number`-th time; of what no turn began, the run's."""
        if number:
            return _turn_at(history, history.legs[number - 1].path) or history.run_id
        begun = await self._conversations.begun(self.session_id, self.flow)
        return begun.row.turn if begun is not None and begun.run_id == history.run_id else history.run_id

    async def _then(self, ask: Ask, leg: Leg) -> Outcome:
        """How the run stood when it parked there."""
        outcome = await self._runner.settler.look_back(ask, leg.path)
        if outcome is not None:
            return outcome
        return Outcome(leg.prompt, (), None, NO_USAGE, ask.run_id, self.session_id, waiting_for=leg.source)

    async def _check_reply(self, history: History, leg: Leg, turn: str, reply: str) -> None:
        """Refuse a turn that comes again with another reply, as far as the first one is remembered.

        Raises:
            InputConflict: it does.
        """
        given = await given_to(self._runner.sessions.rows(self.session_id), leg.source, history.run_id, leg.path)
        if given is not None and given.turn == turn and given.payload != redacted(reply):
            raise InputConflict(
                f"turn {turn} came with another reply before",
                flow=self.flow,
                remedy="give each turn an id of its own",
            )

    async def _answer_anew(self, history: History, leg: Leg, give: Callable[[], Awaitable[object]]) -> None:
        """Put another reply in the place of one that failed, and forget what came of that."""
        if any(scope.unwinding for scope in history.scopes.values()):
            raise self._not_waiting("what failed has to be undone first: send the same reply again")
        known = {path for scope in history.scopes.values() for path in scope.remembered()}
        after = _from_there_on(self._plan, leg.path)
        tops = sorted({_top(path) for path in known})
        gone = [Forgotten(top) for top in tops if _ROUND.split(top)[0] in after]
        await self._conversations.archive.rewrite(history, gone, give)

    # --- which run ---

    async def _found(self) -> History | None:
        """The run of the conversation that is open, or else of the last one that began here."""
        begun = await self._conversations.begun(self.session_id, self.flow)
        last = self._checked(begun.history) if begun is not None else await self._own()
        if last is not None and last.ended is None:
            return last
        for row in reversed(await self._conversations.parked(self.session_id)):
            if row.flow == self.flow:
                history = await self._history(row.run)
                if history is not None and history.ended is None:
                    return history
        return last

    async def _of_turn(self, turn: str | None, at_hand: History | None) -> History | None:
        """The run in which a turn was a reply, as far as that is remembered, or else the one at hand.

        Raises:
            NotWaiting: it was a reply in a run that is not kept any more, or was given up before it took it.
        """
        if turn is None or (at_hand is not None and turn in at_hand.turns):
            return at_hand
        rows = self._runner.sessions.rows(self.session_id)
        for source in sorted(self._plan.sources):
            run_id = await answered_in(rows, source, turn)
            if run_id is None or (at_hand is not None and run_id == at_hand.run_id):
                continue
            history = await self._history(run_id)
            if history is None or turn not in history.turns:
                raise self._not_waiting(f"turn {turn} was a reply in another conversation")
            return history
        return at_hand

    async def _own(self) -> History | None:
        """The run whose own session this is, if it is one of the flow."""
        history = await self._history(self.session_id)
        started = history.started if history is not None else None
        return history if started is not None and started.flow == self.flow else None

    async def _history(self, run_id: str) -> History | None:
        return self._checked(await self._conversations.history(run_id))

    def _checked(self, history: History | None) -> History | None:
        if history is not None:
            check_tenant_of(self._ask(history.run_id), history)
        return history

    def _ask(
        self, run_id: str, given: Given | None = None, opening: Callable[[], Awaitable[None]] | None = None
    ) -> Ask:
        ask = Ask(
            plan=self._plan,
            input=None,
            run_id=run_id,
            session_id=self.session_id,
            detach=self._detach,
            tenant=self._tenant,
            opening=opening,
        )
        return ask if given is None else evolve(ask, input=given.input, params=given.params)

    def _turn_id(self, turn_id: object) -> str | None:
        """A turn id as it is recorded, if one was given."""
        if turn_id is None:
            return None
        if not isinstance(turn_id, str) or not turn_id.strip():
            raise InvalidInput(f"{turn_id!r} is no turn id", remedy="give text that is not blank, or leave it out")
        return self.session_id if scoped(self._tenant, turn_id) == self.session_id else redacted(turn_id)

    def _not_waiting(self, why: str) -> NotWaiting:
        return NotWaiting(
            f"flow {self.flow!r} waits for no reply in session {self.session_id}: {why}",
            flow=self.flow,
            remedy="look at what it asks now with session.waiting_for(), or start it",
        )


def _place_of(history: History, path: str) -> int:
    return max(i for i, leg in enumerate(history.legs) if leg.path == path)


def _turn_at(history: History, path: str) -> str | None:
    """The turn that counts at a place where the run parked."""
    for scope in history.scopes.values():
        if path in scope.saved:
            return cast("dict[str, str]", scope.saved[path]).get("f")
    return None


def _top(path: str) -> str:
    """The statement of the registered flow that a path is in, as the attempt or the round that it is in."""
    return "/".join(path.split("/")[:2])


def _from_there_on(plan: Plan, path: str) -> set[str]:
    """The places of an await of a flow and of all that follows it."""
    root = plan.root
    places = [f"{root.segment}/{part.segment}" for part in root.parts[0].parts]
    return set(places[places.index(path) :]) if path in places else {path}
