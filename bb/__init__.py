"""bb: name a flow, make it durable, and it may die anywhere.

A typed library for composing agent pipelines that survive crashes. Everything public is here; `bb.testing` holds what
belongs in tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bb.agents.agent import Agent, Handler
from bb.agents.chat import ModelChat
from bb.agents.reply import ModelReply
from bb.agents.tool import Tool
from bb.agents.turn import Turn
from bb.app import RESUME, App, run, run_sync
from bb.check import Problem, check
from bb.clock import Clock, SystemClock
from bb.engine.outcome import Outcome, RunInfo
from bb.engine.stream import RunStream
from bb.errors import (
    AgentFailed,
    BBError,
    Closed,
    Conflict,
    CorruptRecord,
    Fatal,
    Fenced,
    InputConflict,
    Interrupted,
    Interruption,
    InvalidId,
    InvalidInput,
    InvalidTool,
    MaxRounds,
    NobodyWon,
    NoModel,
    NotifyFailed,
    NotSavable,
    RunBusy,
    RunCancelled,
    RunExpired,
    RunIdInUse,
    SchemaMismatch,
    SelectConflict,
    StoreError,
    StoreFull,
    StreamBroken,
    TooLarge,
    ToolArgs,
    UnknownFlow,
    UnknownRun,
    UnknownSelect,
    UpstreamError,
    UpstreamRejected,
    WiringError,
)
from bb.flows.options import DurableOptions
from bb.flows.tree import (
    All,
    AnyFlow,
    Chain,
    DurableFlow,
    Flow,
    Group,
    NamedFlow,
    Notify,
    One,
    Respond,
    Select,
)
from bb.identity import signature, structural_diff
from bb.messages import Input, Message, Request, Role, ToolCall, ToolResult, ToolSpec, Usage
from bb.models.anthropic import AnthropicModel
from bb.models.base import Chunk, Model, ModelRequest
from bb.models.fixed import FixedModel
from bb.models.openai import OpenAIModel
from bb.place import idempotency_key, spent
from bb.redaction import redact
from bb.schema import Doc, Schema
from bb.stores.base import Lease, Store, StreamInfo
from bb.stores.memory import MemStore
from bb.trace import Event, JSONLines, Recorder, StructlogTracer, Tee, Tracer

if TYPE_CHECKING:
    from bb.stores.file import FileStore


def __getattr__(name: str) -> object:
    if name == "FileStore":  # loads diskcache, which a program without it need not pay for
        from bb.stores.file import FileStore

        return FileStore
    raise AttributeError(f"module 'bb' has no attribute {name!r}")


__all__ = [
    "RESUME",
    "Agent",
    "AgentFailed",
    "All",
    "AnthropicModel",
    "AnyFlow",
    "App",
    "BBError",
    "Chain",
    "Chunk",
    "Clock",
    "Closed",
    "Conflict",
    "CorruptRecord",
    "Doc",
    "DurableFlow",
    "DurableOptions",
    "Event",
    "Fatal",
    "Fenced",
    "FileStore",
    "FixedModel",
    "Flow",
    "Group",
    "Handler",
    "Input",
    "InputConflict",
    "Interrupted",
    "Interruption",
    "InvalidId",
    "InvalidInput",
    "InvalidTool",
    "JSONLines",
    "Lease",
    "MaxRounds",
    "MemStore",
    "Message",
    "Model",
    "ModelChat",
    "ModelReply",
    "ModelRequest",
    "NamedFlow",
    "NoModel",
    "NobodyWon",
    "NotSavable",
    "Notify",
    "NotifyFailed",
    "One",
    "OpenAIModel",
    "Outcome",
    "Problem",
    "Recorder",
    "Request",
    "Respond",
    "Role",
    "RunBusy",
    "RunCancelled",
    "RunExpired",
    "RunIdInUse",
    "RunInfo",
    "RunStream",
    "Schema",
    "SchemaMismatch",
    "Select",
    "SelectConflict",
    "Store",
    "StoreError",
    "StoreFull",
    "StreamBroken",
    "StreamInfo",
    "StructlogTracer",
    "SystemClock",
    "Tee",
    "TooLarge",
    "Tool",
    "ToolArgs",
    "ToolCall",
    "ToolResult",
    "ToolSpec",
    "Tracer",
    "Turn",
    "UnknownFlow",
    "UnknownRun",
    "UnknownSelect",
    "UpstreamError",
    "UpstreamRejected",
    "Usage",
    "WiringError",
    "check",
    "idempotency_key",
    "redact",
    "run",
    "run_sync",
    "signature",
    "spent",
    "structural_diff",
]
