"""A hub with one model, and the hub's client pointed at it with an empty cache."""

import json

import pytest

from tests.services.hub_server import HubServer, use_hub

NAME = "someone/some-model"
CONFIG = {"architectures": ["LlamaForCausalLM"], "hidden_size": 64}
INDEX = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
WEIGHTS = [*INDEX["weight_map"].values()]
FILES = {
    "config.json": json.dumps(CONFIG).encode(),
    "tokenizer.json": b"{}",
    "model.safetensors.index.json": json.dumps(INDEX).encode(),
    **{name: b"weights of " + name.encode() for name in WEIGHTS},
}
NOT_NEEDED = dict.fromkeys(
    ("pytorch_model.bin", "consolidated.safetensors", "original/model.safetensors", "README.md", "onnx/model.onnx"),
    b"no reader",
)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    with HubServer({NAME: FILES | NOT_NEEDED}) as hub:
        use_hub(hub, tmp_path / "hub", monkeypatch)
        yield hub
