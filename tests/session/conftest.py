from __future__ import annotations

from pathlib import Path

import pytest

from miles_core.session.tokenizer import ChatTokenizer

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart"


@pytest.fixture(scope="session")
def chat() -> ChatTokenizer:
    """The quickstart's real tokenizer: characters, ChatML."""
    return ChatTokenizer.load(QUICKSTART / "model")
