"""bb: name a flow, make it durable, and it may die anywhere.

A typed library for composing agent pipelines that survive crashes. Everything public is here; `bb.testing` holds what
belongs in tests.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from bb.agents.agent import Agent, Handler
from bb.agents.chat import ModelChat
from bb.agents.reply import ModelReply
from bb.agents.tool import Tool
from bb.agents.turn import Turn
from bb.app import RESUME, App
from bb.check import Problem, check
from bb.clock import Clock, SystemClock
from bb.engine.outcome import Delivery, Fired, JobInfo, Outcome, RunInfo, SessionTurn
from bb.engine.runs.stream import RunStream
from bb.errors import (
    AgentFailed,
    AlreadyParked,
    ApproverFailed,
    AssertionFailed,
    BBError,
    Closed,
    Conflict,
    CorruptRecord,
    Denied,
    Fatal,
    Fenced,
    GraphChanged,
    InputConflict,
    Interrupted,
    Interruption,
    InvalidCron,
    InvalidId,
    InvalidInput,
    InvalidText,
    InvalidTool,
    InvalidValue,
    InvalidWire,
    MaxRounds,
    NobodyWon,
    NoModel,
    NotifyFailed,
    NotSavable,
    NotWaiting,
    OnceBusy,
    OpFailed,
    RunBusy,
    RunCancelled,
    RunExpired,
    RunIdInUse,
    SchemaMismatch,
    SelectConflict,
    StoreError,
    StoreFull,
    StreamBroken,
    Throttled,
    TimedOut,
    TooLarge,
    ToolArgs,
    TooManyIterations,
    TriggerCycle,
    Unbound,
    UnknownFlow,
    UnknownRun,
    UnknownSelect,
    UnknownWebhook,
    Unwound,
    UpstreamError,
    UpstreamRejected,
    WiringError,
)
from bb.flows.expressions import Expr, Expression, Field, Format, List_, Lit, Obj, Parse, Value, Var
from bb.flows.options import DurableOptions
from bb.flows.refs import negate, optional, ref
from bb.flows.tree import (
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
)
from bb.identity import signature
from bb.messages import Input, Message, Request, Role, ToolCall, ToolResult, ToolSpec, Usage
from bb.models.base import Chunk, Model, ModelRequest
from bb.models.fixed import FixedModel
from bb.ops import Catalogue, Op, Viewed, op
from bb.place import idempotency_key, spent
from bb.policy import AllowAll, Approval, Approver, AskOnTerminal, ByRisk, Decision, DenyAll, Policy, Proposed
from bb.redaction import redact
from bb.running import run, run_sync
from bb.schema import Doc, Schema
from bb.stores.base import Lease, Store, StreamInfo
from bb.stores.memory import MemStore
from bb.trace import Event, JSONLines, Recorder, StructlogTracer, Tee, Tracer

if TYPE_CHECKING:
    from bb import text as text
    from bb import wire as wire
    from bb.engine.runs.session import Session
    from bb.identity.diff import structural_diff
    from bb.models.anthropic import AnthropicModel
    from bb.models.openai import OpenAIModel
    from bb.otel import OpenTelemetryTracer
    from bb.stores.file import FileStore

_LATER = {
    "AnthropicModel": "bb.models.anthropic",
    "FileStore": "bb.stores.file",
    "OpenAIModel": "bb.models.openai",
    "OpenTelemetryTracer": "bb.otel",
    "Session": "bb.engine.runs.session",
    "structural_diff": "bb.identity.diff",
}
"""What is loaded when it is first used, as are the spellings `text` and `wire`: a program without it need not pay."""


def __getattr__(name: str) -> object:
    if name in ("text", "wire"):
        return importlib.import_module(f"bb.{name}")
    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name]), name)
    raise AttributeError(f"module 'bb' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "RESUME",
    "Agent",
    "AgentFailed",
    "AiSegment",
    "All",
    "AllowAll",
    "AlreadyParked",
    "AnthropicModel",
    "AnyFlow",
    "App",
    "Approval",
    "Approver",
    "ApproverFailed",
    "AskOnTerminal",
    "Assert",
    "AssertionFailed",
    "At",
    "Await",
    "BBError",
    "Bind",
    "ByRisk",
    "Call",
    "Catalogue",
    "Chain",
    "Checkpoint",
    "Chunk",
    "Clock",
    "Closed",
    "Conflict",
    "CorruptRecord",
    "Debounce",
    "Decision",
    "Delivery",
    "Denied",
    "DenyAll",
    "Doc",
    "DurableFlow",
    "DurableOptions",
    "Each",
    "Emit",
    "Event",
    "Every",
    "Expr",
    "Expression",
    "Fatal",
    "Fenced",
    "Field",
    "FileStore",
    "Fired",
    "FixedModel",
    "Flow",
    "Format",
    "GraphChanged",
    "Group",
    "Handler",
    "Input",
    "InputConflict",
    "Interrupted",
    "Interruption",
    "InvalidCron",
    "InvalidId",
    "InvalidInput",
    "InvalidText",
    "InvalidTool",
    "InvalidValue",
    "InvalidWire",
    "JSONLines",
    "JobInfo",
    "Lease",
    "List_",
    "Lit",
    "MaxRounds",
    "MemStore",
    "Memo",
    "Message",
    "Model",
    "ModelChat",
    "ModelReply",
    "ModelRequest",
    "NamedFlow",
    "NoModel",
    "NobodyWon",
    "NotSavable",
    "NotWaiting",
    "Notify",
    "NotifyFailed",
    "Obj",
    "Once",
    "OnceBusy",
    "One",
    "Op",
    "OpFailed",
    "OpenAIModel",
    "OpenTelemetryTracer",
    "Outcome",
    "Param",
    "Parse",
    "Peek",
    "Policy",
    "Problem",
    "Proposed",
    "Recorder",
    "Repeat",
    "Request",
    "Respond",
    "Retry",
    "Return",
    "Role",
    "Run",
    "RunBusy",
    "RunCancelled",
    "RunExpired",
    "RunIdInUse",
    "RunInfo",
    "RunStream",
    "Saga",
    "Schema",
    "SchemaMismatch",
    "Scope",
    "Select",
    "SelectConflict",
    "Session",
    "SessionTurn",
    "Step",
    "Store",
    "StoreError",
    "StoreFull",
    "StreamBroken",
    "StreamInfo",
    "StructlogTracer",
    "SystemClock",
    "Tee",
    "Throttle",
    "Throttled",
    "TimedOut",
    "Timeout",
    "TooLarge",
    "TooManyIterations",
    "Tool",
    "ToolArgs",
    "ToolCall",
    "ToolResult",
    "ToolSpec",
    "Tracer",
    "TriggerCycle",
    "Try",
    "Turn",
    "Unbound",
    "UnknownFlow",
    "UnknownRun",
    "UnknownSelect",
    "UnknownWebhook",
    "Unless",
    "Unwound",
    "UpstreamError",
    "UpstreamRejected",
    "Usage",
    "Value",
    "Var",
    "Viewed",
    "Webhook",
    "When",
    "WiringError",
    "WithTools",
    "check",
    "idempotency_key",
    "negate",
    "op",
    "optional",
    "redact",
    "ref",
    "run",
    "run_sync",
    "signature",
    "spent",
    "structural_diff",
    "text",
    "wire",
]
