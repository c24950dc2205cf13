"""The safety envelope around every op, wherever it is called from: authorise, approve, execute, redact."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast, final

from attrs import frozen

from bb.agents.invoke import invoke
from bb.engine.frame.tasks import is_cancelled
from bb.errors import ApproverFailed, BBError, Denied, Interruption, OpFailed, WiringError, words_of
from bb.flows.expressions import Lit, Obj
from bb.flows.tree import Call
from bb.logs import warning
from bb.ops import Catalogue, Op, Viewed
from bb.plain import in_short, plain, text_of
from bb.policy import AllowAll, Approval, Approver, ByRisk, Decision, Policy, Proposed
from bb.record import Record
from bb.redaction import has_secrets, redacted

AnyOp: TypeAlias = Op[Any, Any]


@final
@frozen(eq=False, repr=False)
class OpResult(Record):
    """What an op came to, and what it says of that (None: nothing)."""

    value: object
    view: str | None = None


@final
@frozen(eq=False, repr=False)
class Envelope(Record):
    """What an app puts around its ops: all may run, and nobody is asked, unless it says so."""

    catalogue: Catalogue
    policy: Policy = Policy()
    approver: Approver | None = None

    def of(self, catalogue: Catalogue) -> Envelope:
        """The same envelope around the ops of another catalogue."""
        return self if catalogue is self.catalogue else Envelope(catalogue, self.policy, self.approver)

    def op(self, call: Call[Any]) -> AnyOp | None:
        """The op that a call means, if there is one."""
        return self.catalogue.op(call)

    def authorise(
        self, name: str, op: AnyOp | None, tools: frozenset[str] | None, *, flow: str = "", path: str = ""
    ) -> None:
        """Let an op pass that is known, allowed by the policy, and among the `tools` around it (None: no such limit).

        Raises:
            Denied: it is not.
        """
        if op is None:
            raise _denied(name, "there is no op of that name", "register it: App(ops=[...])", flow, path)
        if tools is not None and op.name not in tools:
            among = ", ".join(sorted(tools)) or "none"
            remedy = "name it in every WithTools around it"
            raise _denied(op.name, f"only some ops may run here: {among}", remedy, flow, path)
        if (reason := self.policy.refusal(op.name)) is not None:
            raise _denied(op.name, reason, "change App(policy=...), if it is to run", flow, path)

    def needs_approval(self, op: AnyOp) -> bool:
        """Whether the approver has to be asked before the op runs."""
        match self.approver:
            case None | AllowAll():
                return False
            case ByRisk() as by_risk:
                return by_risk.asks(op.risk)
            case _:
                return True

    async def approve(
        self,
        calls: Iterable[tuple[AnyOp, Mapping[str, object]]],
        run_id: str,
        place: str,
        *,
        flow: str = "",
        path: str = "",
    ) -> Decision:
        """Ask once about all of these calls; `place` is where the question stands.

        Raises:
            ApproverFailed: there is no answer, neither yes nor no.
            Interruption: the run stops while it waits for the answer.
        """
        asked = [(op, arguments) for op, arguments in calls]
        if self.approver is None or not any(self.needs_approval(op) for op, _ in asked):
            return Decision.allow()
        try:
            request = Approval(tuple(_proposed(op, arguments) for op, arguments in asked), run_id, place)
            decision = _a_decision(await self.approver.approve(request))
        except Interruption:
            raise
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise
            warning("an approver failed", run_id=run_id, path=place, error=_told(error))
            raise ApproverFailed(
                f"the approver failed: {_told(error)}",
                flow=flow,
                path=path,
                remedy=(error.remedy if isinstance(error, BBError) else "")
                or "run it again: the approver is asked again",
            ) from error
        return Decision(decision.allowed, redacted(decision.reason))

    async def execute(self, op: AnyOp, arguments: Mapping[str, object], *, flow: str = "", path: str = "") -> OpResult:
        """Run an op; secrets are cut out of a text it gives, and out of what it says.

        Raises:
            OpFailed: it raised; the error is the cause.
            Denied, Interruption: it raised that.
        """
        try:
            value = await invoke(op.fn, **arguments)
        except (Interruption, Denied):
            raise
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                raise  # any other came from a task of the op's own, and is a failure like all others
            raise OpFailed(
                f"op {op.name} failed: {_told(error)}",
                flow=flow,
                path=path,
                remedy=error.remedy if isinstance(error, BBError) else "",
            ) from error
        if isinstance(value, Viewed):
            return OpResult(_redacted(value.value), redacted(text_of(value.view)))
        return OpResult(_redacted(value))


def refused(op: AnyOp, decision: Decision, *, flow: str = "", path: str = "") -> Denied:
    """The error for an op to which the approver said no."""
    return _denied(op.name, decision.reason, "run it again, and App(approver=...) is asked again", flow, path)


def _denied(name: str, reason: str, remedy: str, flow: str, path: str) -> Denied:
    return Denied(f"op {name} was denied: {reason}", flow=flow, path=path, remedy=remedy)


def _a_decision(answer: object) -> Decision:
    if isinstance(answer, Decision):
        return answer
    raise WiringError(
        f"it answered with {in_short(answer)}, which is no Decision",
        remedy="return bb.Decision.allow() or bb.Decision.deny(reason)",
    )


def arguments_of(
    call: Call[Any], op: AnyOp, evaluated: Sequence[object], *, flow: str = "", path: str = ""
) -> Mapping[str, object]:
    """The keyword arguments of a call whose `args` came to `evaluated`.

    What stands in the flow as a record gives them by name; any other value is the one argument that the op requires, or the
    only one it has.

    Raises:
        WiringError: they do not fit the op.
    """
    if not call.args:
        given: Mapping[Any, object] = {}
    elif len(call.args) > 1:
        raise _misfit(op, "was given several arguments without names", flow, path)
    elif _is_record(call.args[0]):
        given = cast("Mapping[Any, object]", evaluated[0])
    else:
        names = op.required if len(op.required) == 1 else op.params
        if len(names) != 1:
            raise _misfit(op, "was given an argument without a name, and has not one that it could be", flow, path)
        given = {names[0]: evaluated[0]}
    if unknown := [name for name in given if name not in op.params]:
        raise _misfit(op, f"has no argument {', '.join(map(in_short, unknown))}", flow, path)
    if missing := [name for name in op.required if name not in given]:
        raise _misfit(op, f"lacks the argument {', '.join(missing)}", flow, path)
    return dict(given)


def _is_record(value: object) -> bool:
    return isinstance(value, Obj) or (isinstance(value, Lit) and isinstance(value.value, dict))


def _misfit(op: AnyOp, what: str, flow: str, path: str) -> WiringError:
    return WiringError(f"op {op.name} {what}", flow=flow, path=path, remedy=f"its arguments are {op.signature}")


def _proposed(op: AnyOp, arguments: Mapping[str, object]) -> Proposed:
    return Proposed(op.name, op.risk, op.effects, {name: _masked(plain(value)) for name, value in arguments.items()})


def _masked(data: object) -> object:
    """Plain data without secrets."""
    if not has_secrets():
        return data
    if isinstance(data, list):
        return [_masked(part) for part in data]
    if isinstance(data, dict):
        return {redacted(key): _masked(part) for key, part in data.items()}
    return _redacted(data)


def _redacted(value: object) -> object:
    return redacted(value) if isinstance(value, str) else value


def _told(error: BaseException) -> str:
    said = error.message if isinstance(error, BBError) else words_of(error)
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
