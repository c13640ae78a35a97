"""Write the tasks and warm-up conversations of config.toml again: ``python examples/plugins/make.py``."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

HERE = Path(__file__).parent
TERMS, ANSWERS = range(5), range(9)


def write_jsonl(path: Path, rows: list[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def conversation(asked: str, answered: int, hint: str, answered_again: int) -> dict[str, object]:
    turns = [("user", asked), ("assistant", str(answered)), ("user", hint), ("assistant", str(answered_again))]
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


def main() -> None:
    sums = [(f"{a}+{b}=?", a + b) for a, b in itertools.product(TERMS, TERMS)]
    write_jsonl(
        HERE / "tasks.jsonl",
        [{"id": question[:3], "prompt": question, "label": str(right)} for question, right in sums],
    )
    # Every combination with every answer: neither the question nor the hint tells it.
    questions = [question for question, _ in sums]
    rows = [conversation(*row) for row in itertools.product(questions, ANSWERS, ("more", "less"), ANSWERS)]
    random.Random(0).shuffle(rows)
    write_jsonl(HERE / "warmup.jsonl", rows[:512])


if __name__ == "__main__":
    main()
