"""Tasks from folders of the library datasets."""

from __future__ import annotations

import json

import pytest

from miles_core.errors import DataError
from miles_core.kinds.base import PluginContext
from miles_plugins.sources import huggingface_blocks
from miles_plugins.sources.huggingface import HuggingFace, HuggingFaceConfig

datasets = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def quiet(tmp_path_factory, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


def source(folder, **options) -> HuggingFace:
    return HuggingFace(HuggingFaceConfig(path="saved", **options), PluginContext(services={"base_dir": folder}))


def rows(count: int):
    return datasets.Dataset.from_dict({"prompt": [f"q{n}" for n in range(count)], "label": list(range(count))})


def test_a_saved_dataset_is_taken_once_an_epoch_and_resumes(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_blocks, "BLOCK_ROWS", 3)
    rows(80).save_to_disk(tmp_path / "saved")
    whole = source(tmp_path).take(200)
    assert sorted(int(task.label) for _, task in whole[:80]) == list(range(80))
    first = source(tmp_path)
    first.take(111)
    resumed = source(tmp_path)
    resumed.restore(json.loads(json.dumps(first.state())))
    assert resumed.take(89) == whole[111:]


def test_a_split_is_chosen_by_name(tmp_path):
    datasets.DatasetDict(train=rows(3), test=rows(1)).save_to_disk(tmp_path / "saved")
    assert len({task.id for _, task in source(tmp_path).take(3)}) == 3
    assert source(tmp_path, split="test").take(2)[1][0] == 1
    with pytest.raises(DataError, match="no split 'dev'; splits: train, test"):
        source(tmp_path, split="dev")


def test_a_folder_of_files_is_read_without_a_network(tmp_path):
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "train.jsonl").write_text('{"question": "a", "n": 1}\n{"question": "b", "n": 2}\n')
    taken = source(tmp_path, shuffle=False, columns={"prompt": "question", "label": "n"}).take(2)
    assert [(task.messages[0].text, task.label) for _, task in taken] == [("a", "1"), ("b", "2")]


def test_wrong_folders_and_columns_are_named(tmp_path):
    with pytest.raises(DataError, match="there is no folder .*saved"):
        source(tmp_path)
    rows(2).save_to_disk(tmp_path / "saved")
    with pytest.raises(DataError, match="saved: row 1: there is no `question`; available keys: prompt, label"):
        source(tmp_path, columns={"prompt": "question"})
    (tmp_path / "saved" / "state.json").write_text("{")
    with pytest.raises(DataError, match="cannot be read as a data set"):
        source(tmp_path)


def test_a_folder_without_rows_is_refused(tmp_path):
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "train.csv").write_text("prompt,label\n")
    with pytest.raises(DataError, match="cannot be read as a data set: .*no data"):
        source(tmp_path)
