"""TRL's side of the benchmark: a GRPO run in TRL's own environment, ``python train.py SETTINGS.json RESULT.json``.

It imports nothing of miles. What it trains, and how much, comes from the settings; it writes when each step ended and
what it generated.
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback, logging
from trl import GRPOConfig, GRPOTrainer

EOS = "<|im_end|>"
CALL = re.compile(r"get (\w)$")

# The quickstart's template, and the tool calls that TRL renders to find out what it writes around a tool's answer.
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "{% for call in message['tool_calls'] or [] %}{{ call['function']['name'] }} {{ call['function']['arguments'] }}"
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class LookupTokenizer(PreTrainedTokenizerFast):
    """Reads ``get KEY`` as a tool call, so that both systems hold the same conversation."""

    def parse_response(self, ids, prefix=None, tools=None):
        del prefix, tools
        text = self.decode(ids, skip_special_tokens=True)
        call = CALL.fullmatch(text)
        if call is None:
            return {"role": "assistant", "content": text}
        function = {"name": "get", "arguments": {"key": call[1]}}
        return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}


class Lookup:
    """The quickstart's look-up tool as TRL's environment."""

    def reset(self, label: str, **_: object) -> None:
        self._label = label

    def get(self, key: str) -> str:
        """Get the value of a key.

        Args:
            key: The key.

        Returns:
            The value.
        """
        del key
        return self._label


def exact_match(completions, label, **_):
    """1 for the right answer in the second turn, else 0."""
    return [
        float(len(turns) > 1 and turns[-1]["content"].strip() == wanted)
        for turns, wanted in zip(completions, label, strict=True)
    ]


def letters(completions, **_):
    """The share of letters in the text: a reward with variance in every group."""
    texts = [turns[-1]["content"] for turns in completions]
    return [sum(map(str.isalpha, text)) / max(1, len(text)) for text in texts]


class Clock(TrainerCallback):
    """When each rollout's last optimizer step was over."""

    def __init__(self, updates: int) -> None:
        self._updates = updates
        self.ends: list[float] = []

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step % self._updates == 0:
            self.ends.append(time.perf_counter())


def main(settings_file: str, result_file: str) -> None:
    settings = json.loads(Path(settings_file).read_text("utf-8"))
    torch.set_num_threads(settings["threads"])
    logging.set_verbosity_error()
    multi_turn = settings["multi_turn"]
    kind = LookupTokenizer if multi_turn else PreTrainedTokenizerFast
    tokenizer = kind.from_pretrained(settings["model"], eos_token=EOS, padding_side="left")
    if multi_turn:
        tokenizer.chat_template = TEMPLATE
        tokenizer.response_template = {}  # says that answers can be parsed; parse_response() does it
    model = AutoModelForCausalLM.from_pretrained(
        settings["model"],
        dtype=torch.float32,
        experts_implementation="eager",  # the faster one on these sizes
    )
    updates = settings["epochs"] * settings["mini_batches"]
    clock = Clock(updates)
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=exact_match if multi_turn else letters,
        args=arguments(settings, updates),
        train_dataset=Dataset.from_list(settings["tasks"]),
        processing_class=tokenizer,
        environment_factory=Lookup if multi_turn else None,
        callbacks=[clock],
    )
    trainer.train()
    # metrics of a rollout are logged once, with the first of its optimizer steps
    history = [row for row in trainer.state.log_history if "completions/mean_length" in row]
    names = ("completions/mean_length", "completions/min_length", "completions/max_length", "reward")
    rows = [{name.rpartition("/")[2]: row[name] for name in names} for row in history]
    Path(result_file).write_text(json.dumps({"ends": clock.ends, "steps": rows}), "utf-8")


def arguments(settings, updates: int) -> GRPOConfig:
    new = settings["max_new_tokens"]
    samples = settings["groups"] * settings["group_size"]
    return GRPOConfig(
        output_dir=settings["folder"],
        per_device_train_batch_size=samples // settings["mini_batches"],
        steps_per_generation=settings["mini_batches"],
        num_iterations=settings["epochs"],
        num_generations=settings["group_size"],
        max_steps=settings["steps"] * updates,
        max_completion_length=settings["max_completion"],
        generation_kwargs={"max_new_tokens": new, "min_new_tokens": 1 if settings["multi_turn"] else new},
        max_tool_calling_iterations=1 if settings["multi_turn"] else None,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        learning_rate=settings["learning_rate"],
        lr_scheduler_type="constant",
        optim="adamw_torch",
        beta=0.0,
        epsilon=0.2,
        epsilon_high=0.28,
        max_grad_norm=1.0,
        loss_type="dapo",
        router_aux_loss_coef=0.0,
        gradient_checkpointing=False,
        use_cpu=True,
        bf16=False,
        seed=0,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        shuffle_dataset=False,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
