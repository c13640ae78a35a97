"""The engine kind `sglang`: what it starts, on which device and address, and which servers it attaches to."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from miles_core.engine.sglang import interpreter as interpreters
from miles_core.engine.sglang.cpu.environment import SERVER_FILE
from miles_core.engine.sglang.plugin import SGLang
from miles_core.errors import ConfigError, EngineError
from miles_core.kinds.base import PluginContext
from miles_core.kinds.engines import Engine

if TYPE_CHECKING:
    from collections.abc import Callable

    from miles_core.kinds.engines import EngineCommand

Make = "Callable[..., EngineCommand]"


@pytest.fixture(autouse=True)
def _machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No CPU environment is set up, and SGLang is not installed here."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(interpreters, "find_spec", lambda _: None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def command(tmp_path: Path, write_config: Callable[..., Path]) -> Make:
    """The command of engine ``index`` where ``[engine]`` has these lines."""
    (tmp_path / "config.json").write_text(json.dumps({"dtype": "bfloat16"}))

    def make(engine: str, index: int = 0, extra: str = "") -> EngineCommand:
        from miles_core.config.load import load_config

        path = write_config(extra=f'\n[engine]\nuse = "sglang"\n{engine}\n{extra}')
        table = load_config(path).config.engine.servers[index]
        engine_plugin = SGLang(SGLang.Config.model_validate(table.options), PluginContext(seed=7))
        assert isinstance(engine_plugin, Engine)
        return engine_plugin.command(str(tmp_path), index=index, config_path=str(path))

    return make


def server_words(made: EngineCommand) -> tuple[str, ...]:
    return made.argv[made.argv.index("--") + 1 :]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "there is no SGLang"),
        ({"python": "/nonexistent/python"}, "'/nonexistent/python' is no program"),
        ({"python": sys.executable}, "has no SGLang"),
    ],
)
def test_a_run_without_sglang_is_refused_before_anything_starts(options: dict[str, str], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        SGLang(SGLang.Config.model_validate(options), PluginContext()).check()


def test_servers_that_run_already_need_no_sglang_here() -> None:
    SGLang(SGLang.Config(urls=("http://127.0.0.1:9",)), PluginContext()).check()


def test_a_server_starts_in_the_interpreter_that_is_named(command: Any) -> None:
    made = command(f"python = {json.dumps(sys.executable)}\ntp_size = 2\n", index=0)
    assert made.argv[:3] == (sys.executable, "-m", "miles_core.engine.sglang.launch")
    assert server_words(made)[:3] == (sys.executable, "-m", "sglang.launch_server")
    assert "--tp-size" in server_words(made)
    assert made.environment["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_a_cpu_server_starts_through_the_stand_ins_and_takes_no_gpu(command: Any) -> None:
    made = command(f'python = {json.dumps(sys.executable)}\ndevice = "cpu"\nenvironment = {{OMP_NUM_THREADS = "2"}}')
    assert server_words(made)[:2] == (sys.executable, str(SERVER_FILE))
    assert "CUDA_VISIBLE_DEVICES" not in made.environment
    assert made.environment["SGLANG_USE_CPU_ENGINE"] == "1"
    assert made.environment["OMP_NUM_THREADS"] == "2"


def test_options_come_after_the_defaults_of_the_cpu_so_that_they_win(command: Any) -> None:
    words = server_words(command(f'python = {json.dumps(sys.executable)}\ndevice = "cpu"\nattention_backend = "x"'))
    assert max(i for i, word in enumerate(words) if word == "--attention-backend") > words.index(
        "--attention-backend=torch_native"
    )


def test_without_sglang_the_remedy_is_to_set_it_up(command: Any) -> None:
    with pytest.raises(EngineError, match="there is no SGLang") as caught:
        command("")
    assert "make sglang-cpu" in str(caught.value.remedy)


def test_the_cpu_environment_serves_no_gpu(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreters, "cpu_environment", lambda: Path(sys.executable))
    assert "--device" in server_words(command(""))
    with pytest.raises(EngineError, match="CPU environment"):
        command('device = "cuda"')


def test_an_interpreter_that_does_not_exist_is_named(command: Any) -> None:
    with pytest.raises(EngineError, match=r"engine\.python = '/no/python'"):
        command('python = "/no/python"')


def test_servers_of_a_run_differ_in_port_seed_and_gpus(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    made = [command(f"python = {json.dumps(sys.executable)}\ncount = 2\nport = 30000\ntp_size = 2", i) for i in (0, 1)]
    assert [words.argv[words.argv.index("--port") + 1] for words in made] == ["30000", "30001"]
    assert [words.environment["CUDA_VISIBLE_DEVICES"] for words in made] == ["4,5", "6,7"]
    assert [server_words(words)[server_words(words).index("--random-seed") + 1] for words in made] == ["7", "8"]


def test_a_group_takes_its_gpus_after_those_before_it(command: Any) -> None:
    groups = "[[engine.groups]]\ncount = 2\ntp_size = 1\n[[engine.groups]]\ntp_size = 4\n"
    made = command(f"python = {json.dumps(sys.executable)}", index=2, extra=groups)
    assert made.environment["CUDA_VISIBLE_DEVICES"] == "2,3,4,5"


def test_groups_with_gpus_of_their_own_each_begin_at_their_first(command: Any) -> None:
    groups = "[[engine.groups]]\ncount = 2\ngpus = [0, 1]\n[[engine.groups]]\ncount = 2\ngpus = [4, 5]\n"
    made = [command(f"python = {json.dumps(sys.executable)}", index=i, extra=groups) for i in range(4)]
    assert [words.environment["CUDA_VISIBLE_DEVICES"] for words in made] == ["0", "1", "4", "5"]


@pytest.mark.parametrize("first", ["gpus = [0, 1]", ""], ids=["one GPU in both", "all of the machine"])
def test_pools_of_gpus_that_overlap_are_refused(command: Any, first: str) -> None:
    groups = f"[[engine.groups]]\n{first}\n[[engine.groups]]\ngpus = [1, 2]\n"
    with pytest.raises(ConfigError, match="overlap: .*, and 1, 2") as caught:
        command(f"python = {json.dumps(sys.executable)}", index=1, extra=groups)
    assert "[[engine.groups]]" in str(caught.value.remedy)


def test_attached_servers_take_no_gpus_of_a_pool(command: Any) -> None:
    started = f"[[engine.groups]]\npython = {json.dumps(sys.executable)}\ngpus = [3]"
    groups = f'[[engine.groups]]\nurls = ["http://a:1"]\n{started}'
    assert command("", index=1, extra=groups).environment["CUDA_VISIBLE_DEVICES"] == "3"


def test_attached_servers_are_watched_one_for_each_index(command: Any) -> None:
    made = command('urls = ["http://a:1", "http://b:2/"]\ncount = 2', index=1)
    assert made.argv == (sys.executable, "-m", "miles_core.engine.sglang.attach", "http://b:2")


def test_each_group_has_its_own_urls(command: Any) -> None:
    groups = f'[[engine.groups]]\npython = {json.dumps(sys.executable)}\n[[engine.groups]]\nurls = ["http://a:1"]\n'
    assert command("", index=1, extra=groups).argv[-1] == "http://a:1"


@pytest.mark.parametrize("count", [1, 3])
def test_urls_must_be_as_many_as_servers(command: Any, count: int) -> None:
    with pytest.raises(ConfigError, match=f"names 2 servers and count is {count}") as caught:
        command(f'urls = ["http://a:1", "http://b:2"]\ncount = {count}')
    assert "count = 2" in str(caught.value.remedy)


def test_a_port_beyond_the_last_one_is_refused(command: Any) -> None:
    with pytest.raises(ConfigError, match="65536"):
        command(f"python = {json.dumps(sys.executable)}\ncount = 2\nport = 65535", index=1)
