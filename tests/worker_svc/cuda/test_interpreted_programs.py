"""The programs of a model's kernels that run together in the interpreter write the bits that they write one after the other."""

import pytest
import torch
from triton.runtime import interpreter

from tests.worker_svc import interpreted_programs
from tests.worker_svc.conftest import Driver
from tests.worker_svc.cuda.conftest import SMALL, host_only
from tests.worker_svc.families.tiny_models import save_family
from tetrad.worker_svc.core.plan import SamplingSpec

pytestmark = host_only

SAMPLING = SamplingSpec(temperature=0.9, top_p=0.9, seed=7, num_logprobs=3)


@pytest.fixture
def compared(monkeypatch) -> set[str]:
    """The kernels of which each launch has run both ways, and has written the same."""
    launch, together, names = interpreter.GridExecutor.__call__, interpreted_programs.TOGETHER, set()

    def launched_twice(kernel, *arguments, **options):
        tensors = [each for each in (*arguments, *options.values()) if isinstance(each, torch.Tensor)]
        before = [each.clone() for each in tensors]
        launch(kernel, *arguments, **options)
        if kernel.fn.__name__ not in together:
            return
        written = [bits(each) for each in tensors]
        for tensor, value in zip(tensors, before, strict=True):
            tensor.copy_(value)
        with monkeypatch.context() as alone:
            alone.setattr(interpreted_programs, "TOGETHER", {})
            launch(kernel, *arguments, **options)
        assert written == [bits(each) for each in tensors], kernel.fn.__name__
        names.add(kernel.fn.__name__)

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", launched_twice)
    return names


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize(
    ("family", "kernels"),
    [
        ("llama", ("normed_qkv", "normed_gated", "prefill_attention", "block_masses", "draw")),
        ("gpt_oss", ("expert_matmul", "prefill_attention", "draw")),
    ],
    ids=("llama", "gpt_oss"),
)
def test_kernels_write_the_same_bits(family, kernels, load_cuda, compared, tmp_path):
    """Three requests of several lengths: a step of prompts, one of decodes, and one of both."""
    save_family(tmp_path, family)
    driver = Driver(load_cuda(tmp_path, enforce_eager=True).make_runner(SMALL), SMALL)
    for handle, length in enumerate((40, 3, 17)):
        driver.add(handle, range(5, 5 + length), SAMPLING)

    driver.step({0: 40, 1: 3})
    driver.step({0: 1, 1: 1})
    driver.step({0: 1, 2: 17})

    assert {f"{name}_kernel" for name in kernels} <= compared
