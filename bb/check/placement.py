"""Rules of what may stand where: suspension, durability, cleanup, and what members side by side may do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from bb.check.scene import Rule, Scene
from bb.check.sites import Site
from bb.flows.tree import Await, Checkpoint, DurableFlow, Once, Respond, Return, Saga, Scope, WithTools


def _await_nested(site: Site, _: Scene) -> Iterator[str]:
    if isinstance(site.body, Await) and "top" not in site.around:
        yield (
            "an await stands directly in the flow that is registered, and nowhere deeper, since a run can suspend only there; "
            "move it up, or give it when=... in place of the branch around it"
        )


def _await_not_durable(site: Site, scene: Scene) -> Iterator[str]:
    if isinstance(site.body, Await) and "top" in site.around and not isinstance(scene.flow, DurableFlow):
        yield "a run that is not durable has nowhere to wait; make the flow durable: .with_id(id).durable()"


def _checkpoint_nested(site: Site, _: Scene) -> Iterator[str]:
    if isinstance(site.body, Checkpoint) and "top" not in site.around:
        yield (
            "a checkpoint stands directly in the flow that is registered, and nowhere deeper, since a later run starts after "
            "it; move it up, or use Once"
        )


def _cleanup_racy(site: Site, _: Scene) -> Iterator[str]:
    if "racing" not in site.around:
        return
    match site.body:
        case Saga():
            yield "a saga inside a One could lose with its undos unrun; move it out of the One"
        case Scope(finally_=finally_) if finally_:
            yield "a scope with finally inside a One could lose with its cleanup unrun; move it out of the One"
        case _:
            pass


def _cap_parallel(site: Site, _: Scene) -> Iterator[str]:
    if isinstance(site.body, WithTools) and "beside" in site.around:
        yield "WithTools cannot confine one of several members that run at once; put it around all of them"


def _return_parallel(site: Site, _: Scene) -> Iterator[str]:
    if isinstance(site.body, Return) and "member" in site.around:
        yield "a Return cannot leave a flow while other members run; name the member, and it leaves that one"


def _return_in_cleanup(site: Site, _: Scene) -> Iterator[str]:
    if isinstance(site.body, Return) and "cleanup" in site.around:
        yield "a Return inside finally or undo would be lost; take it out, or name the part of the cleanup that it leaves"


def _respond_in_once(site: Site, _: Scene) -> Iterator[str]:
    if isinstance(site.body, Respond) and "once" in site.around:
        yield "what a Once skips cannot deliver; put the Respond after the Once"


def _respond_aside(site: Site, _: Scene) -> Iterator[str]:
    if isinstance(site.body, Respond) and "beside" in site.around:
        yield "a Respond beside other members delivers nothing by itself; its text goes out with the next one outside"


def _inner_option(site: Site, _: Scene) -> Iterator[str]:
    flow = site.flow
    if not isinstance(flow, DurableFlow) or "durable" not in site.around:
        return
    if flow.options.ttl is not None or flow.options.resume_on_reregister:
        yield "ttl and resume_on_reregister count on the outermost durable flow only; move them there"


def _not_durable(site: Site, scene: Scene) -> Iterator[str]:
    if scene.durable:
        return
    match site.body:
        case Once():
            yield "in a flow with nothing durable a Once runs every time; make the flow durable: .with_id(id).durable()"
        case Checkpoint():
            yield "in a flow with nothing durable a checkpoint does nothing; make the flow durable: .with_id(id).durable()"
        case _:
            pass


def _unreachable(site: Site, _: Scene) -> Iterator[str]:
    if site.cut:
        yield "the Return before it always leaves; take one of them out"


LENT: Final = (
    Rule("await-nested", _await_nested),
    Rule("checkpoint-nested", _checkpoint_nested),
    Rule("cleanup-racy", _cleanup_racy),
    Rule("cap-parallel", _cap_parallel),
    Rule("respond-in-once", _respond_in_once),
    Rule("respond-aside", _respond_aside, warning=True),
)
"""What also counts for the statements that a `Run` brings in."""

SITES: Final = (
    *LENT,
    Rule("await-not-durable", _await_not_durable),
    Rule("return-parallel", _return_parallel),
    Rule("return-in-cleanup", _return_in_cleanup),
    Rule("inner-option", _inner_option, warning=True),
    Rule("not-durable", _not_durable, warning=True),
    Rule("unreachable", _unreachable, warning=True),
)
