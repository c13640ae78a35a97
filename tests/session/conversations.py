"""Conversations with a byte-level tokenizer of our own, whose answers are scripted as token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from miles_core.kinds.sessions import Tools
from miles_core.session.session import TokenSession
from miles_core.session.tokenizer import ChatTokenizer
from miles_core.types import FinishReason, GenerateRequest, Generation, Message, SamplingParams, VersionSpan

CHAT = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FORGETS = CHAT.replace(
    "{{ m.content }}",
    "{% if m.role == 'assistant' and '</think>' in m.content %}{{ m.content.split('</think>')[-1].lstrip() }}"
    "{% else %}{{ m.content }}{% endif %}",
)
"""Drops what was thought, as many templates do."""
SPECIAL = ["<s>", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>"]
END, OTHER_END = 2, 3
_WORDS = "having heating hav ing user assistant system tool question answer the a one two next 1 2 3 4 \n"


def chat_tokenizer(template: str = CHAT) -> ChatTokenizer:
    """A byte-level BPE that knows a few words; ``<|im_end|>`` and ``<|endoftext|>`` stop."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=SPECIAL,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_WORDS] * 4, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="<|im_end|>", additional_special_tokens=SPECIAL[1:]
    )
    fast.chat_template = template
    return ChatTokenizer(fast, (END, OTHER_END))


class Says:
    """An engine that says scripted ids, in order."""

    def __init__(self, *answers: Sequence[int]) -> None:
        self._answers = list(answers)

    async def generate(self, request: GenerateRequest, **_: Any) -> Generation:
        output = np.array(self._answers.pop(0), np.int32)
        last = int(output[-1])
        reason = FinishReason("stop", matched=last) if last in (END, OTHER_END) else FinishReason("length")
        logprobs = np.full(len(output), -0.5, np.float32)
        return Generation(output, logprobs, reason, (VersionSpan(0, 0, len(output)),), cached_tokens=3)


async def talk(
    tokenizer: ChatTokenizer,
    *rounds: tuple[Sequence[Message] | str, Sequence[int] | str],
    tools: Tools = (),
    parser: Any = None,
) -> TokenSession:
    """A session of one conversation: what is appended and what is answered, turn by turn; texts are users', and end."""
    answers = [[*tokenizer.encode(said), END] if isinstance(said, str) else list(said) for _, said in rounds]
    session = TokenSession(tokenizer, Says(*answers), None, task_id="t", group_id="g", trajectory_id="x", parser=parser)
    messages: list[Message] = []
    for appended, _ in rounds:
        messages += [Message("user", appended)] if isinstance(appended, str) else appended
        turn = await session.generate(session.prepare(messages, tools), SamplingParams(max_new_tokens=99))
        messages.append(turn.message)
    return session
