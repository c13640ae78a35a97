"""Data that planes exchange: frozen, typed, without behaviour that needs torch."""

from miles_core.types.batch import Estimates, StepBatch
from miles_core.types.generation import FinishReason, GenerateRequest, Generation, SamplingParams, VersionSpan
from miles_core.types.mapping import NameMapping, Part, Rule
from miles_core.types.message import ImagePart, Message, TextPart
from miles_core.types.routing import RoutingSpec, RoutingTrace
from miles_core.types.sample import MAIN_AGENT, Group, MediaSpan, Reward, Sample, Status, Trajectory, TurnRecord
from miles_core.types.task import Task
from miles_core.types.weights import (
    Bucket,
    Layout,
    Manifest,
    Opening,
    Parameter,
    ParameterTable,
    Placement,
    Region,
    Shard,
    StreamTargets,
    TensorSpec,
)

__all__ = [
    "MAIN_AGENT", "Bucket", "Estimates", "FinishReason", "GenerateRequest", "Generation", "Group", "ImagePart",
    "Layout", "Manifest", "MediaSpan", "Message", "NameMapping", "Opening", "Parameter", "ParameterTable", "Part",
    "Placement", "Region", "Reward", "RoutingSpec", "RoutingTrace", "Rule", "Sample", "SamplingParams", "Shard",
    "Status", "StepBatch", "StreamTargets", "Task", "TensorSpec", "TextPart", "Trajectory", "TurnRecord",
    "VersionSpan",
]  # fmt: skip
