from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from miles_core.adapters import adapted
from miles_core.config.schema import GenerateTable
from miles_core.engine.embedded.engine import EmbeddedEngine
from miles_core.engine.embedded.server import create_app
from miles_core.engine.embedded.settings import EngineSettings
from miles_core.errors import PluginError
from miles_core.kinds import PluginContext
from miles_core.kinds.environments import Step
from miles_core.plugins.functions.episode import load_episode_function
from miles_core.rollout.budget import Budget
from miles_core.rollout.environment import EnvironmentRunner
from miles_core.rollout.episode import Episode
from miles_core.rollout.generating import Generator
from miles_core.rollout.scoring import Scorer, WeightedReward
from miles_core.session.session import TokenSession
from miles_core.session.tokenizer import ChatTokenizer
from miles_core.testing.builders import make_task
from miles_core.types import Message, SamplingParams, Status, Trajectory, VersionSpan

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Slime

MODEL = Path(__file__).parents[3] / "examples/quickstart/model"
BY_HAND = """
async def generate(args, sample, sampling_params):
    sample.tokens = [3, 4, 5, 10, 11, 20, 12]
    sample.response, sample.response_length = "get c", 4
    sample.loss_mask = [1, 1, 0, 1]
    sample.rollout_log_probs = [-0.5, -0.25, 0.0, -1.0]
    sample.weight_versions = ["2", "3"]
    sample.status = sample.Status.COMPLETED
    {then}
    return sample
"""
TWO_TURNS = """
import aiohttp

async def generate(args, sample, sampling_params, evaluation=False):
    from transformers import AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(args.hf_checkpoint)
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
    sample.tokens = tokenizer.encode(sample.prompt, add_special_tokens=False)
    sample.metadata["calls"] = 0
    sample.evaluated = evaluation
    async with aiohttp.ClientSession() as http:
        for turn in range(2):
            payload = {"input_ids": sample.tokens, "sampling_params": sampling_params, "return_logprob": True}
            async with http.post(url, json=payload) as response:
                output = await response.json()
                assert response.status == 200, output
            logprobs = output["meta_info"]["output_token_logprobs"]
            sample.append_response_tokens(
                args, tokens=[pair[1] for pair in logprobs], log_probs=[pair[0] for pair in logprobs],
                meta_info=output["meta_info"], text=output["text"],
            )
            sample.metadata["calls"] += 1
            if turn == 0:
                seen = tokenizer.encode("7", add_special_tokens=False)
                sample.append_response_tokens(args, tokens=seen, trainable=False, text="7")
    return sample

def rm(args, sample):
    return sample.metadata["calls"] + 0.5 * (sample.evaluated is False)
"""


class Nowhere:
    """An environment that nothing is asked of."""

    def reset(self, task: Any, seed: int) -> None: ...

    def step(self, response: Message) -> Step:
        raise AssertionError

    def close(self) -> None: ...


@pytest.fixture(scope="module")
def chat() -> ChatTokenizer:
    return ChatTokenizer.load(MODEL)


@pytest.fixture
def play(slime: Slime, chat: ChatTokenizer) -> Callable[..., Any]:
    """Runs one episode with a function of slime."""

    async def run(source: str, options: dict[str, Any] | None = None, router_url: str = "") -> Trajectory:
        slime.module("slime_generate", source)
        table = GenerateTable.model_validate({"use": "slime_generate:generate", "adapter": "slime", **(options or {})})
        config = {"model": {"path": str(MODEL)}, "rollout": {"max_context_tokens": 60, "max_response_tokens": 5}}
        services = {"config": config, "router_url": router_url, "tokenizer": chat.tokenizer}
        function = load_episode_function(table, {})(PluginContext(services=services))
        session = TokenSession(chat, None, None, task_id="task-0", group_id="g", trajectory_id="x")  # type: ignore[arg-type]
        episode = Episode(
            make_task("value of c?", metadata={"hint": ["a"]}),
            lambda: EnvironmentRunner(Nowhere(), "nowhere", 5.0),
            session,
            Budget(max_turns=2, max_context_tokens=60, max_response_tokens=20, max_new_tokens=6, episode_timeout=60),
            lambda turn: SamplingParams(temperature=0.7, sampling_seed=turn),
            "x",
            "g",
            Generator(function, "slime_generate:generate"),
        )
        return await episode.run(0)

    return run


@pytest.mark.anyio
async def test_a_filled_sample_is_trained_to_the_token(play: Callable[..., Any]) -> None:
    trajectory = await play(BY_HAND.format(then="sample.reward = 0.5"))
    assert (trajectory.status, trajectory.response, trajectory.step_rewards) == (Status.COMPLETED, "get c", (0.5,))
    (sample,) = trajectory.samples
    assert sample.tokens.tolist() == [3, 4, 5, 10, 11, 20, 12]
    assert sample.loss_mask.tolist() == [0, 0, 0, 1, 1, 0, 1]
    assert sample.logprobs.tolist() == [0, 0, 0, -0.5, -0.25, 0, -1.0]
    assert sample.versions == (VersionSpan(2, 3, 5), VersionSpan(3, 6, 7))
    assert [(turn.start, turn.end, turn.sampling.temperature) for turn in sample.turns] == [(3, 5, 0.7), (6, 7, 0.7)]
    assert (sample.trajectory_id, sample.group_id, sample.task_id) == ("x", "g", "task-0")


@pytest.mark.anyio
async def test_plain_functions_give_the_same(play: Callable[..., Any]) -> None:
    trajectory = await play(BY_HAND.format(then="").replace("async ", ""))
    assert trajectory.samples[0].loss_mask.tolist() == [0, 0, 0, 1, 1, 0, 1]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("then", "reason"),
    [
        ("sample.rollout_log_probs = None", "has no rollout_log_probs, so it cannot be trained"),
        ("sample.rollout_log_probs.pop()", "4 response tokens need as many rollout_log_probs; the sample has 3"),
        ("sample.rollout_log_probs[0] = float('nan')", "needs a finite entry of rollout_log_probs; one is nan"),
        ("sample.loss_mask.append(1)", "loss_mask must have a 0 or 1 for each of its 4 response tokens; it has 5"),
        ("sample.loss_mask = [0] * 4", "leaves no token to train"),
        ("sample.response_length = 7", "7 tokens and response_length = 7"),
        ("sample.weight_versions = []", r"weight_versions are \[\], which does not tell"),
        ("sample.weight_versions = ['1', '2', '3']", r"weight_versions are \[1, 2, 3\], which does not tell"),
        ("sample.remove_sample = True", "the function set sample.remove_sample"),
        ("sample.status = sample.Status.FAILED", "set sample.status to failed"),
        ("sampling_params['temperature'] = 0.1", "changed temperature of its sampling_params"),
        ("return [sample, sample]", "returned 2 samples; several samples of one trajectory"),
        ("return 1.0", "must return the sample; got float"),
        ("raise OSError('no answer')", "no answer"),
        ("sample.reward = {'score': 1.0}", "set reward_key in the table"),
        ("sample.tokens = [1] * 100 + sample.tokens", "a sample has 107 tokens"),
    ],
)
async def test_what_cannot_be_trained_to_the_token_is_a_failed_trajectory_with_the_reason(
    play: Callable[..., Any], then: str, reason: str
) -> None:
    trajectory = await play(BY_HAND.format(then=then))
    assert trajectory.status is Status.FAILED
    assert re.search(reason, str(trajectory.error))
    assert not trajectory.samples


@pytest.mark.anyio
async def test_an_aborted_sample_is_an_aborted_trajectory(play: Callable[..., Any]) -> None:
    trajectory = await play(BY_HAND.format(then="sample.status = sample.Status.ABORTED"))
    assert trajectory.status is Status.ABORTED


@pytest.mark.anyio
async def test_one_version_counts_for_all_tokens_and_pending_as_completed(play: Callable[..., Any]) -> None:
    trajectory = await play(
        BY_HAND.format(then="sample.weight_versions = ['4']; sample.status = sample.Status.PENDING")
    )
    assert trajectory.status is Status.COMPLETED
    assert {span.version for span in trajectory.samples[0].versions} == {4}


@pytest.mark.anyio
async def test_an_update_of_the_weights_within_a_generation_that_is_appended_by_hand_keeps_its_place(
    play: Callable[..., Any],
) -> None:
    then = """
    stop = {"finish_reason": {"type": "stop"}}
    sample.weight_versions = []
    spans = [{"version": "2", "start": 0, "end": 1}, {"version": "3", "start": 1, "end": 2}]
    sample.update_from_meta_info(args, {**stop, "weight_versions": spans})
    sample.update_from_meta_info(args, {**stop, "weight_version": "3", "output_token_logprobs": [[-1.0, 12]]})
    """
    trajectory = await play(BY_HAND.format(then=then.strip()))
    assert trajectory.error is None
    assert trajectory.samples[0].versions == (VersionSpan(2, 3, 4), VersionSpan(3, 4, 5), VersionSpan(3, 6, 7))


@pytest.mark.anyio
async def test_two_turns_against_an_engine_over_http_and_a_reward_of_what_the_function_left(
    play: Callable[..., Any], slime: Slime, chat: ChatTokenizer, serving: Callable[..., Any]
) -> None:
    import torch
    from transformers import AutoConfig, Qwen3MoeForCausalLM

    torch.manual_seed(0)
    model = Qwen3MoeForCausalLM(AutoConfig.from_pretrained(MODEL)).eval()  # type: ignore[no-untyped-call]
    settings = EngineSettings(context_length=96, max_running_requests=2)
    engine = EmbeddedEngine(model, chat.tokenizer, settings, replay_points=[], routing=None)
    async with serving(create_app(engine)) as server:
        trajectory = await play(TWO_TURNS, router_url=server.url)
    assert trajectory.error is None
    (sample,) = trajectory.samples
    asked = [message.to_chat() for message in trajectory.task.messages]
    prompt = chat.encode(chat.tokenizer.apply_chat_template(asked, add_generation_prompt=True, tokenize=False))
    assert sample.tokens[: len(prompt)].tolist() == prompt
    assert len(sample.turns) == 2
    assert 2 <= sample.trained_tokens <= 10
    assert {span.version for span in sample.versions} == {0}
    assert (sample.logprobs[sample.loss_mask == 1] < 0).all()
    reward = slime.make("reward_models", TWO_TURNS, "rm")
    (scored,) = await Scorer([WeightedReward("rm", reward)]).score([trajectory])
    assert scored.reward is not None
    assert scored.reward.value == 2.5


@pytest.mark.parametrize(
    ("signature", "message"),
    [("(input)", "take one `input`"), ("(args, sample)", r"calls generate\(args, sample, sampling_params\)")],
)
def test_other_signatures_are_refused(signature: str, message: str) -> None:
    function = eval(f"lambda {signature[1:-1]}: None")
    with pytest.raises(PluginError, match=message):
        adapted("f", "slime", "generate", function)
