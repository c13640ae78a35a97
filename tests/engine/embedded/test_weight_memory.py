"""Parameters give their memory back and take it again under the same tensors."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import Qwen3MoeForCausalLM

from miles_core.engine.embedded.weight_memory import WeightMemory

if TYPE_CHECKING:
    from pathlib import Path


def test_released_tensors_keep_their_form_and_every_alias_sees_the_memory_come_back(own_moe: Any) -> None:
    before = {name: tensor.clone() for name, tensor in own_moe.state_dict().items()}
    aliases = own_moe.state_dict()
    memory = WeightMemory(own_moe.parameters())
    memory.release()
    assert all(tensor.untyped_storage().nbytes() == 0 for tensor in own_moe.parameters())
    assert {name: (tensor.shape, tensor.dtype) for name, tensor in aliases.items()} == {
        name: (tensor.shape, tensor.dtype) for name, tensor in before.items()
    }
    memory.resume()
    for name, tensor in aliases.items():
        tensor.copy_(before[name])
    assert all(torch.equal(parameter, before[name]) for name, parameter in own_moe.named_parameters())


def test_a_checkpoint_mapped_from_its_file_moves_into_memory_that_can_be_released(own_moe: Any, tmp_path: Path) -> None:
    own_moe.save_pretrained(tmp_path)
    mapped = Qwen3MoeForCausalLM.from_pretrained(tmp_path, dtype="float32")
    assert not all(parameter.untyped_storage().resizable() for parameter in mapped.parameters())
    memory = WeightMemory(mapped.parameters())
    for name, parameter in mapped.named_parameters():
        assert torch.equal(parameter, own_moe.state_dict()[name])
        assert parameter.data_ptr() % 64 == 0
    memory.release()
    assert all(parameter.untyped_storage().nbytes() == 0 for parameter in mapped.parameters())


def test_tied_parameters_stay_tied() -> None:
    tensor = torch.frombuffer(bytearray(range(16)), dtype=torch.uint8).float()
    base = torch.frombuffer(bytearray(tensor.numpy().tobytes()), dtype=torch.float32)
    whole, half = torch.nn.Parameter(base), torch.nn.Parameter(base[8:])
    assert not whole.untyped_storage().resizable()
    memory = WeightMemory([whole, half])
    assert torch.equal(whole, tensor)
    assert torch.equal(half, tensor[8:])
    memory.release()
    memory.resume()
    with torch.no_grad():
        whole.copy_(tensor + 1)
    assert torch.equal(half, tensor[8:] + 1)


RESIDENT = """
import torch
from miles_core.engine.embedded.allocator import return_free_memory
from miles_core.engine.embedded.weight_memory import WeightMemory

def resident():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024

model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8)), torch.nn.Linear(1024, 8192))
memory = WeightMemory(model.parameters())
for _ in range(3):
    full = resident()
    memory.release()
    return_free_memory()
    empty = resident()
    memory.resume()
    print(full - empty)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
def test_the_system_gets_the_memory_each_time() -> None:
    """64 MiB in tensors of 4 KiB to 32 MiB; allocators keep smaller ones once larger ones were freed."""
    run = subprocess.run([sys.executable, "-c", RESIDENT], check=True, capture_output=True, text=True)
    given_back = [float(line) for line in run.stdout.split()]
    assert len(given_back) == 3
    assert min(given_back) > 60, given_back
