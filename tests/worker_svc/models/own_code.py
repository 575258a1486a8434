"""A checkpoint that brings its own code: a Llama whose MLP is doubled, under a name that nothing else knows."""

import json
from pathlib import Path

import torch

from tests.worker_svc.families.tiny_models import save_family

_CODE = """
from pathlib import Path

from transformers import LlamaConfig, LlamaForCausalLM

(Path({directory!r}) / "has_run").touch()


class DoubledConfig(LlamaConfig):
    model_type = "doubled"


class DoubledForCausalLM(LlamaForCausalLM):
    config_class = DoubledConfig

    def __init__(self, config):
        super().__init__(config)
        for layer in self.model.layers:
            layer.mlp.register_forward_hook(lambda _, __, output: output * 2)
"""


def save_own_code(directory: Path) -> torch.nn.Module:
    """Write the checkpoint and return transformers' model of it; the code leaves the file "has_run" where it runs."""
    model = save_family(directory, "llama")
    (directory / "doubled.py").write_text(_CODE.format(directory=str(directory)))
    config = json.loads((directory / "config.json").read_text())
    own = {"AutoConfig": "doubled.DoubledConfig", "AutoModelForCausalLM": "doubled.DoubledForCausalLM"}
    changes = {"model_type": "doubled", "architectures": ["DoubledForCausalLM"], "auto_map": own}
    (directory / "config.json").write_text(json.dumps(config | changes))
    for layer in model.model.layers:
        layer.mlp.register_forward_hook(lambda _, __, output: output * 2)
    return model


def has_run(directory: Path) -> bool:
    """Return whether the checkpoint's code has run."""
    return (directory / "has_run").exists()
