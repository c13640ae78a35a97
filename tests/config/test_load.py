from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from miles_core.config.load import dump_config, load_config
from miles_core.errors import ConfigError


def _message(path):
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert caught.value.remedy
    return caught.value.message


def test_a_minimal_file_gives_defaults_and_keeps_the_options_of_plugins(write_config):
    config = load_config(write_config()).config
    assert (config.run.steps, config.run.seed, config.engine.use) == (3, 0, "embedded")
    assert config.data.options == {"path": "tasks.jsonl"}
    assert [reward.options for reward in config.rewards] == [{"ignore_case": True}, {}]


def test_paths_count_from_the_folder_of_the_file_not_from_the_working_directory(write_config, tmp_path, monkeypatch):
    write_config()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    loaded = load_config(Path("../run.toml"))
    assert (loaded.path, loaded.base_dir) == (tmp_path / "run.toml", tmp_path)
    assert loaded.resolve(loaded.config.model.path) == tmp_path / "model"
    assert loaded.resolve("/absolute") == Path("/absolute")


def test_a_mistyped_key_is_named_in_full_with_file_and_nearest_key(write_config):
    path = write_config(("group_size", "groups_size"))
    message = _message(path)
    assert str(path) in message
    assert "rollout.groups_size: unknown key; did you mean 'group_size'?" in message
    assert "rollout.group_size: missing; expected integer: trajectories per task" in message
    assert "2 errors" in message


def test_a_mistyped_table_is_named_with_the_nearest_one(write_config):
    assert "rewrds: unknown key; did you mean 'rewards'?" in _message(write_config(extra="[[rewrds]]\nuse = 'a'\n"))


def test_an_unknown_key_deep_in_an_array_keeps_its_index_and_lists_known_keys(write_config):
    message = _message(write_config(extra="[router]\nhosst = 'a'\n[[router.middleware]]\nmax = 1\n"))
    assert "router.hosst: unknown key; did you mean 'host'? known keys: host, port, policy, middleware" in message
    assert "router.middleware.0.use: missing; expected text" in message


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "steps = 3",
            "steps = 'three'",
            "run.steps: expected integer, unable to parse string",
        ),
        ("steps = 3", "steps = 0", "run.steps: expected greater than or equal to 1; got 0"),
        ('path = "model"', "path = 5", "model.path: expected text; got 5"),
        ('path = "model"', 'path = "m"\ninit = "rnd"', "model.init: expected 'pretrained' or 'random'; got 'rnd'"),
        ("[[environments]]", "[environments]", "write [[environments]]"),
        (
            "[[environments]]",
            "[[environments]]\nuse = 'lookup'\n[[environments]]",
            "environments: two tables have the name 'lookup'",
        ),
        ('use = "exact_match"', 'use = "my_rewards:short"', "rewards: two tables have the name 'my_rewards:short'"),
        ("[rollout]", "[sampling]\ntemperature = 1e-7\n[rollout]", "sampling.temperature: expected greater than or eq"),
        ('use = "jsonl"', "", "data.use: missing; expected text: name, distribution/name or module:attribute"),
    ],
)
def test_a_wrong_value_says_what_was_expected_and_what_came(write_config, old, new, expected):
    assert expected in _message(write_config((old, new)))


def test_a_plain_value_where_a_table_belongs_is_named(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("run = 3\n")
    assert "run: expected a table; got 3" in _message(path)


def test_a_validator_of_the_schema_speaks_without_pydantic_s_prefix(write_config):
    message = _message(write_config(extra="[optimizer]\nbetas = [0.9, 1.0]\n"))
    assert "optimizer.betas: each beta must be in [0, 1); got" in message


def test_broken_toml_names_line_and_column(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("[run]\nsteps = = 3\n")
    assert "line 2, column 9" in _message(path)


def test_a_missing_file_a_directory_and_a_binary_file_are_explained(tmp_path):
    (tmp_path / "a.toml").write_text("")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    assert "there is no config file" in _message(tmp_path / "none.toml")
    assert "is a directory; it holds a.toml, binary.toml" in _message(tmp_path)
    assert "not UTF-8" in _message(tmp_path / "binary.toml")


def test_tables_of_one_plugin_may_stand_side_by_side_under_names_of_their_own(write_config):
    path = write_config(extra="name = 'a'\n[[rewards]]\nuse = 'my_rewards:short'\nname = 'b'\n")
    assert [reward.name for reward in load_config(path).config.rewards] == [None, "a", "b"]


def test_the_dump_is_toml_that_loads_to_the_same_config(write_config, tmp_path):
    middleware = (
        "[[router.middleware]]\nuse = 'a:B'\n[[router.middleware]]\nuse = 'c:D'\nlimits = [{ n = { m = 1 } }]\n"
    )
    config = load_config(write_config(extra=f"options = {{ x = 1 }}\n{middleware}"), ["trackers=[]"]).config
    text = dump_config(config)
    again = tmp_path / "again.toml"
    again.write_text(text)
    assert load_config(again).config == config
    document = tomllib.loads(text)
    assert document["rewards"][0] == {"use": "exact_match", "weight": 1.0, "timeout": 60.0, "ignore_case": True}
    assert "id" not in document["run"]
    assert document["optimizer"]["betas"] == [0.9, 0.95]
    assert document["trackers"] == []
    headers = [line for line in text.splitlines() if line.startswith("[")]
    assert headers[:6] == ["[run]", "[model]", "[data]", "[rollout]", "[sampling]", "[[environments]]"]
    assert headers.count("[[rewards]]") == headers.count("[[router.middleware]]") == 2


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"steps = 3": ""}, "set steps, epochs or max_hours: a run needs an end"),
        ({"steps = 3": "epochs = 1"}, None),
        ({"steps = 3": "max_hours = 0.5"}, None),
        ({"steps = 3": "epochs = 1", "": "[optimizer]\ndecay = 'cosine'\n"}, "decay needs optimizer.decay_steps"),
        ({"steps = 3": "epochs = 1", "": "[optimizer]\ndecay = 'cosine'\ndecay_steps = 9\n"}, None),
        ({"steps = 3": "steps = 3\nplacement = 'colocated'", "[rollout]": "[rollout]\nmax_staleness = 1"}, "colocated"),
        ({"[rollout]": "[rollout]\nover_sampling = 2"}, "over_sampling has an effect only with fill = 'kept'"),
        ({"[rollout]": "[rollout]\nover_sampling = 2\nfill = 'kept'"}, None),
        ({"[rollout]": "[rollout]\nfill = 'kept'\nmax_groups_per_step = 1"}, "no step could ever be full"),
        ({"[rollout]": "[rollout]\nmax_steps_ahead = 1"}, "max_steps_ahead = 1 is more than max_staleness = 0"),
        ({"[rollout]": "[rollout]\nmax_steps_ahead = 1\nmax_staleness = 2"}, None),
    ],
)
def test_keys_that_do_not_fit_together_are_refused_with_the_reason(write_config, overrides, expected):
    extra = overrides.pop("", "")
    path = write_config(*overrides.items(), extra=extra)
    if expected is None:
        again = path.with_name("again.toml")
        again.write_text(dump_config(load_config(path).config))
        assert load_config(again).config == load_config(path).config
    else:
        assert expected in _message(path)
