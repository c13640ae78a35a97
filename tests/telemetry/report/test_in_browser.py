"""The page in a real browser: it opens from a file, shows what was recorded, and never runs what a policy wrote."""

from __future__ import annotations

import pytest

from miles_core.telemetry.report.page import write_report
from miles_core.telemetry.report.vocabulary import Spelling
from miles_core.types import Status

BYTES = Spelling(lambda ids: bytes(ids).decode("utf-8", "replace"), lambda token: f"<0x{token:02X}>")
SHOWN = "[...document.querySelectorAll('#list .row')].map((row) => row.lastChild.textContent)"
DETAIL = "document.querySelector('#detail').innerText"


@pytest.fixture
def page(run_folder, trajectory, hostile, tmp_path):
    """Two steps: a solved, a failed and a long episode, then five with hostile texts."""
    failed = {"status": Status.FAILED, "reward": None, "error": "engine 0 <b>died</b>"}
    first = [
        trajectory("s1-a", "get é", reward=0.25, task_id="easy-1"),
        trajectory("s1-b", task_id="hard-1", environment="search", **failed),
        trajectory("s1-c", "get c " * 20, reward=0.5, task_id="hard-2", versions=(7, 9)),
    ]
    second = [trajectory(f"s2-{index}", text, task_id=f"hostile-{text}") for index, text in enumerate(hostile)]
    row = {"rollout/reward": 0.5, f"rollout/dropped/{hostile[0]}": 1, f"rollout/dropped/{hostile[2]}": 2}
    folder = run_folder(tmp_path / "run", [row, row], steps=[first, second])
    output = tmp_path / "report.html"
    write_report(folder, output, BYTES, notes=[hostile[1]])
    return output


async def choose(tab, episode):
    index = f"[...document.querySelectorAll('#list .row')].find((row) => row.title.startsWith('{episode} '))"
    await tab.run(f"{index}.click()")
    await tab.until(f"document.querySelector('#detail').dataset.shown === '{episode}'")


async def fill(tab, **fields):
    for name, value in fields.items():
        field = f"document.querySelector('#filters').elements['{name.replace('_', '-')}']"
        await tab.run(f"(() => {{ const field = {field}; field.value = '{value}'; "
                      "field.dispatchEvent(new Event('input', {bubbles: true})); })()")  # fmt: skip


@pytest.mark.anyio
async def test_an_episode_shows_its_messages_scores_turns_and_error(page, browsing):
    async with browsing(page) as tab:
        await choose(tab, "s1-b")
        text = await tab.run(DETAIL)
        for part in (
            "value of c?", "get c", "engine 0 <b>died</b>", "none: judge: HTTP 503", "search", "failed (done)",
            "reward: format\n0.5", "0.125", '"hits":"1152921504606846976"', "tasks.jsonl:7", '"weight":"nan"',
            "label\n2",
        ):  # fmt: skip
            assert part in text


@pytest.mark.anyio
async def test_tokens_are_coloured_by_mask_logprob_and_version_and_explain_themselves(page, browsing):
    colors = "[...document.querySelectorAll('.token-view span')].map((span) => span.style.background)"
    async with browsing(page) as tab:
        await choose(tab, "s1-c")
        for mode in ("mask", "logprob", "version"):
            await tab.run(f"document.querySelector('[data-mode={mode}]').click()")
            found = await tab.run(colors)
            prompt, generated = found[:11], found[11:]
            assert set(prompt) == {""}
            assert "" not in generated
            assert len(set(generated)) == (2 if mode == "version" else 1)
        legend = "[...document.querySelectorAll('.legend span')].map((span) => span.textContent)"
        assert await tab.run(legend) == ["version 7", "version 9"]
        await tab.mouse_over(".token-view span[data-at='11']")
        await tab.until("!document.querySelector('#tip').hidden")
        tip = await tab.run("document.querySelector('#tip').textContent")
        assert 'token 11   id 103   "g"' in tip
        assert "logprob -0.25 (probability 0.779)" in tip
        assert "version 7   turn 1" in tip


@pytest.mark.anyio
async def test_parts_of_a_character_are_shown_as_bytes(page, browsing):
    async with browsing(page) as tab:
        await choose(tab, "s1-a")
        parts = "[...document.querySelectorAll('.token-view .part')].map((span) => span.textContent)"
        assert await tab.run(parts) == ["C3", "A9"]


@pytest.mark.anyio
async def test_filters_narrow_the_list_and_columns_sort_it(page, browsing):
    async with browsing(page) as tab:
        assert await tab.run("document.querySelector('#count').textContent") == "8 of 8"
        for fields, expected in (
            ({"text": "HARD"}, ["hard-1", "hard-2"]),
            ({"text": "", "status": "failed"}, ["hard-1"]),
            ({"status": "", "environment": "search"}, ["hard-1"]),
            ({"environment": "", "step_max": "1", "kept": "1"}, ["easy-1", "hard-2"]),
            ({"kept": "0"}, ["hard-1"]),
            ({"kept": "", "reward_min": "0.3"}, ["hard-2"]),
            ({"reward_min": "", "reward_max": "0.3"}, ["easy-1"]),
        ):
            await fill(tab, **fields)
            assert await tab.run(SHOWN) == expected
        await tab.run("document.querySelector('#filters button').click()")
        await tab.until("document.querySelector('#count').textContent === '8 of 8'")
        await fill(tab, step_max="1")
        for column, expected in (
            ("reward", ["hard-2", "easy-1", "hard-1"]),
            ("reward", ["easy-1", "hard-2", "hard-1"]),
            ("length", ["hard-2", "easy-1", "hard-1"]),
        ):
            await tab.run(f"document.querySelector('#columns [data-column={column}]').click()")
            assert await tab.run(SHOWN) == expected


@pytest.mark.anyio
async def test_arrow_keys_move_through_the_episodes(page, browsing):
    async with browsing(page) as tab:
        await choose(tab, "s1-a")
        for key, focused, episode in (
            ("ArrowRight", False, "s1-b"), ("ArrowDown", True, "s1-c"), ("ArrowUp", True, "s1-b"),
            ("End", True, "s2-4"), ("ArrowRight", False, "s2-4"), ("Home", True, "s1-a"),
        ):  # fmt: skip
            await tab.run(f"document.querySelector('#list').{'focus' if focused else 'blur'}()")
            await tab.key(key)
            await tab.until(f"document.querySelector('#detail').dataset.shown === '{episode}'")
        assert await tab.run("location.hash") == "#episode=s1-a"


@pytest.mark.anyio
async def test_what_a_policy_wrote_is_text_and_nothing_is_fetched(page, browsing, hostile):
    async with browsing(page) as tab:
        before = await tab.run("[document.scripts.length, document.images.length]")
        for index, text in enumerate(hostile):
            await choose(tab, f"s2-{index}")
            shown = text.replace("\u2028", "⟨2028⟩").replace("\u2029", "⟨2029⟩").replace("\u202e", "⟨202E⟩")
            assert shown in await tab.run(DETAIL)
        assert await tab.run("document.title") == "run · miles"
        assert await tab.run("[document.scripts.length, document.images.length]") == before
        captions = await tab.run(
            "[...document.querySelectorAll('figcaption')].map((caption) => caption.innerText).join()"
        )
        assert hostile[0] in captions
        assert hostile[1] in await tab.run("document.querySelector('.problems').innerText")
        assert tab.requests == [page.as_uri()]
        assert tab.problems == []


@pytest.mark.anyio
async def test_the_page_s_own_policy_stops_a_script_that_is_not_the_page_s(page, browsing):
    text = page.read_text("utf-8")
    page.write_text(text.replace("</body>", "<script>document.title = 'owned'</script></body>"), "utf-8")
    async with browsing(page) as tab:
        assert await tab.run("document.title") == "run · miles"
        assert any("Content Security Policy" in problem for problem in tab.problems)


@pytest.mark.anyio
async def test_only_the_rows_in_view_exist_and_the_last_of_many_episodes_opens(
    run_folder, trajectory, tmp_path, browsing
):
    steps = [[trajectory(f"s{step}-{member}", task_id=f"t{step}") for member in range(50)] for step in range(1, 41)]
    write_report(run_folder(tmp_path / "run", steps=steps), tmp_path / "report.html", None)
    async with browsing(tmp_path / "report.html") as tab:
        assert await tab.run("document.querySelector('#count').textContent") == "2,000 of 2,000"
        assert await tab.run("document.querySelectorAll('#list .row').length") < 60
        await tab.run("document.querySelector('#list').focus()")
        await tab.key("End")
        await tab.until("document.querySelector('#detail').dataset.shown === 's40-49'")
        await tab.until("document.querySelector('#list .row[aria-selected=true]') !== null")
        assert await tab.run("document.querySelector('.token-view.ids span').textContent") == "118"


@pytest.mark.anyio
async def test_a_run_without_episodes_says_so(run_folder, tmp_path, browsing):
    write_report(run_folder(tmp_path / "run"), tmp_path / "report.html", None)
    async with browsing(tmp_path / "report.html") as tab:
        text = await tab.run("document.body.innerText")
        assert "There are no episodes" in text
        assert "there is nothing to plot" in text
