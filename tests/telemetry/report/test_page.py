"""The page's file: self-contained, escaped, replaced whole, and made of whatever the run has."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from miles_core.telemetry.report.page import write_report


@pytest.fixture
def made(run_folder, tmp_path):
    def made(rows=(), *, notes=(), damage=lambda folder: None, **contents):
        folder = run_folder(tmp_path / "run", rows, **contents)
        damage(folder)
        write_report(folder, tmp_path / "report.html", None, notes=notes)
        return (tmp_path / "report.html").read_text("utf-8")

    return made


class Tags(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.found = []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))


def test_the_page_refers_to_nothing_outside_itself(made, trajectory):
    page = made([{"rollout/reward": 0.5}], steps=[[trajectory("a")]])
    for tag, attributes in Tags(page).found:
        assert not {"src", "data", "action", "srcset"} & attributes.keys()
        address = attributes.get("href") or attributes.get("xlink:href") or "#"
        assert address.startswith("#"), tag
    assert "@import" not in page
    assert not re.findall(r"url\((?!#)", page)


def test_hostile_texts_of_config_plugins_and_metrics_add_no_tag(made, hostile):
    def poison(folder):
        (folder / "config.toml").write_text("".join(f"# {text!a} {text}\n" for text in hostile).replace("\u2028", ""))
        (folder / "plugins.json").write_text('[{"name": "<script>x</script>", "kind": "</td><img src=x>"}]')

    names = [name for name, _ in Tags(made([{"rollout/dropped/a": 1}])).found if name in ("script", "img", "b")]
    rows = [{f"rollout/dropped/{text}": 1 for text in hostile}]
    found = Tags(made(rows, notes=hostile, damage=poison)).found
    assert [name for name, _ in found if name in ("script", "img")] == [name for name in names if name != "b"]


def test_everything_may_be_missing_or_half_written(made):
    def damage(folder):
        (folder / "plugins.json").unlink()
        (folder / "metrics.jsonl").write_text('noise\n{"step": 1, "rollout/reward": 0.5}\n{"step": 2, "rol')
        (folder / "episodes").mkdir()
        (folder / "episodes" / "step-1.npz").write_bytes(b"PK half a file")

    page = made(damage=damage)
    assert "1 lines of metrics.jsonl hold no metrics" in page
    assert "step-1.npz" in page
    assert "plugins.json is missing" in page
    assert "<h3>Reward</h3>" in page


def test_a_page_that_cannot_be_written_leaves_the_old_one(made, run_folder, tmp_path, monkeypatch):
    old = made()
    monkeypatch.setattr("pathlib.Path.replace", lambda self, target: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(OSError, match="full"):
        write_report(tmp_path / "run", tmp_path / "report.html", None)
    assert (tmp_path / "report.html").read_text("utf-8") == old
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "run"]
