"""Own output layer: the files decide whether it is tied, but for one that is quantized. See also test_wrappers.py."""

from dataclasses import replace

import pytest
import torch
from structlog.testing import capture_logs

from tests.worker_svc.conftest import tiny_config
from tetrad.worker_svc.checkpoint.own_output import with_own_output
from tetrad.worker_svc.families.registry import read_config

TABLE = torch.ones(4, 2)


class Files:
    """The part of a WeightSource that is asked for; `packed` is a quantized output layer."""

    def __init__(self, output=None, packed=None) -> None:
        self._tensors = {"model.embed_tokens.weight": TABLE} | ({} if output is None else {"lm_head.weight": output})
        self._packed = packed

    def has(self, name):
        return name in self._tensors or self._packed is not None

    def load_stored(self, name):
        return self._tensors[name]

    def load_quantized(self, name):
        return self._packed


@pytest.mark.parametrize(
    ("files", "is_tied", "event"),
    [
        (Files(), True, None),
        (Files(TABLE.clone()), True, None),
        (Files(2 * TABLE), False, "output_layer.not_tied"),
        (Files(TABLE.half()), False, "output_layer.not_tied"),
        (Files(packed=(TABLE, 8)), True, "output_layer.tied"),
    ],
    ids=["none", "the same", "another", "of another type", "quantized"],
)
def test_the_files_decide_for_a_config_that_ties(files, is_tied, event):
    tied = replace(read_config(tiny_config("LlamaForCausalLM")), tie_word_embeddings=True)

    with capture_logs() as lines:
        found = with_own_output(tied, files)

    assert found == replace(tied, tie_word_embeddings=is_tied)
    assert [line["event"] for line in lines if line["log_level"] == "warning"] == ([event] if event else [])


def test_a_config_that_does_not_tie_is_left_as_it_is():
    config = replace(read_config(tiny_config("LlamaForCausalLM")), tie_word_embeddings=False)

    assert with_own_output(config, Files(TABLE)) is config
