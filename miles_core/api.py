"""All that a plugin imports: Protocols, data types and errors. Importing it pulls in neither torch nor numpy."""

from miles_core.errors import (
    BudgetSpent,
    CheckpointError,
    ConfigError,
    DataError,
    EngineError,
    MilesError,
    PluginError,
    RolloutError,
    RoutingError,
    SessionError,
    TrainError,
    WeightSyncError,
)
from miles_core.kinds import KINDS, Kind, PluginContext
from miles_core.kinds.advantage_estimators import AdvantageEstimator
from miles_core.kinds.corrections import Correction, CorrectionFunction
from miles_core.kinds.data_sources import DataSource, InspectedRow
from miles_core.kinds.engines import Engine, EngineClient, EngineCommand
from miles_core.kinds.environments import AgentEnvironment, AgentSession, Environment, Observation, Step
from miles_core.kinds.filters import BufferedGroup, Filter, Verdict
from miles_core.kinds.generate import EpisodeFunction, EpisodeHandle, EpisodeResult
from miles_core.kinds.hooks import RunInfo, TrainerHandle
from miles_core.kinds.losses import Loss, LossBatch, TokenLoss, TokenOutputs
from miles_core.kinds.model_bridges import ModelBridge, ReplayPoint
from miles_core.kinds.reductions import Reduction
from miles_core.kinds.reward_models import RewardModel
from miles_core.kinds.router_middlewares import RouterMiddleware
from miles_core.kinds.sessions import (
    GeneratedTurn,
    MessageMatch,
    Prompt,
    ReasoningParser,
    Renderer,
    StoredTurn,
    ToolCallParser,
    Turn,
    TurnPick,
)
from miles_core.kinds.trackers import Tracker
from miles_core.kinds.train_backends import ModelSource, OptimizerSettings, TrainBackend
from miles_core.kinds.weight_transports import WeightTransport
from miles_core.types import (
    Bucket,
    Estimates,
    FinishReason,
    GenerateRequest,
    Generation,
    Group,
    ImagePart,
    Layout,
    Manifest,
    Message,
    NameMapping,
    Opening,
    Part,
    Placement,
    Reward,
    RoutingSpec,
    RoutingTrace,
    Rule,
    Sample,
    SamplingParams,
    Status,
    StepBatch,
    StreamTargets,
    Task,
    TensorSpec,
    TextPart,
    Trajectory,
    TurnRecord,
    VersionSpan,
)

__all__ = [
    "KINDS", "AdvantageEstimator", "AgentEnvironment", "AgentSession", "Bucket", "BudgetSpent", "BufferedGroup",
    "CheckpointError", "ConfigError", "Correction", "CorrectionFunction", "DataError", "DataSource", "Engine",
    "EngineClient", "EngineCommand", "EngineError", "Environment", "EpisodeFunction", "EpisodeHandle", "EpisodeResult",
    "Estimates", "Filter", "FinishReason", "GenerateRequest", "GeneratedTurn", "Generation", "Group", "ImagePart",
    "InspectedRow", "Kind", "Layout", "Loss", "LossBatch", "Manifest", "Message", "MessageMatch", "MilesError",
    "ModelBridge", "ModelSource", "NameMapping", "Observation", "Opening", "OptimizerSettings", "Part", "Placement",
    "PluginContext", "PluginError", "Prompt", "ReasoningParser", "Reduction", "Renderer", "ReplayPoint", "Reward",
    "RewardModel", "RolloutError", "RouterMiddleware", "RoutingError", "RoutingSpec", "RoutingTrace", "Rule",
    "RunInfo", "Sample", "SamplingParams", "SessionError", "Status", "Step", "StepBatch", "StoredTurn",
    "StreamTargets", "Task", "TensorSpec", "TextPart", "TokenLoss", "TokenOutputs", "ToolCallParser", "Tracker",
    "TrainBackend", "TrainError", "TrainerHandle", "Trajectory", "Turn", "TurnPick", "TurnRecord", "Verdict",
    "VersionSpan", "WeightSyncError", "WeightTransport",
]  # fmt: skip
