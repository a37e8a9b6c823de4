"""The vocabulary that crosses borders: frozen structs, no behaviour.

Runs in: every process. Owns: nothing. May import: errors. Start reading at: request.py, then step.py, output.py.
"""

from sixfold.messages.control import WAIT_REASONS, Admitted, EngineStats, Hello, Rejected, Welcome, WorkerFacts
from sixfold.messages.ids import BlockId, EngineEpoch, RequestId, SlotIndex, StepId, TokenId
from sixfold.messages.output import NO_TIME, Finish, FinishReason, OutputBatch, TokenDelta
from sixfold.messages.peers import AbortNamed, ApiCounts, CountsAsked, Found
from sixfold.messages.request import Abort, FinishAt, GenerateRequest, Pooling, Sampling
from sixfold.messages.step import (
    EMBED,
    PROMPT_LOGPROBS,
    SAMPLE,
    RowStatus,
    SlotAdmit,
    StepPlan,
    StepResult,
    TokenLogprobs,
)
from sixfold.messages.view import ChoiceView, EngineView, Watch

__all__ = [
    "EMBED",
    "NO_TIME",
    "PROMPT_LOGPROBS",
    "SAMPLE",
    "WAIT_REASONS",
    "Abort",
    "AbortNamed",
    "Admitted",
    "ApiCounts",
    "BlockId",
    "ChoiceView",
    "CountsAsked",
    "EngineEpoch",
    "EngineStats",
    "EngineView",
    "Finish",
    "FinishAt",
    "FinishReason",
    "Found",
    "GenerateRequest",
    "Hello",
    "OutputBatch",
    "Pooling",
    "Rejected",
    "RequestId",
    "RowStatus",
    "Sampling",
    "SlotAdmit",
    "SlotIndex",
    "StepId",
    "StepPlan",
    "StepResult",
    "TokenDelta",
    "TokenId",
    "TokenLogprobs",
    "Watch",
    "Welcome",
    "WorkerFacts",
]
