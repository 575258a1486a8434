"""The real model, loaded by transformers from its GGUF file: the reference of the stack's output."""

import functools
from pathlib import Path
from unittest import mock

import gguf
import torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM


def load_transformers_model(file: Path) -> LlamaForCausalLM:
    """Return transformers' model with the file's weights, dequantized by transformers to float32.

    It would read the file twice, and make the table of the tensors' names anew for each module: twice the time of the rest.
    """
    once = {name: functools.cache(getattr(gguf, name)) for name in ("GGUFReader", "get_tensor_name_map")}
    with mock.patch.multiple(gguf, **once):
        return AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32).eval()
