"""Models of the Hugging Face hub: config.json is read and may refuse the model before its weights are downloaded."""

import json
import os
import subprocess
import sys

import pytest

from tests.services.hub_server import HubServer
from tetrad.services.errors import ModelError, NotFound
from tetrad.services.model_files import resolve_model

NAME = "someone/some-model"
CONFIG = {"architectures": ["LlamaForCausalLM"], "hidden_size": 64}
INDEX = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
WEIGHTS = [*INDEX["weight_map"].values()]
FILES = {
    "config.json": json.dumps(CONFIG).encode(),
    "tokenizer.json": b"{}",
    "model.safetensors.index.json": json.dumps(INDEX).encode(),
    **dict.fromkeys(WEIGHTS, b"weights"),
    "pytorch_model.bin": b"the same weights, which nothing reads",
}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub with one model, and the hub's client pointed at it with an empty cache."""
    constants = pytest.importorskip("huggingface_hub.constants")
    with HubServer({NAME: dict(FILES)}) as hub:
        # The client reads HF_ENDPOINT and HF_HOME when it is first imported.
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        yield hub


def refuse(config):
    raise ModelError(f"{config['architectures'][0]} cannot run here.")


def names_in(directory):
    return sorted(path.name for path in directory.iterdir())


def test_all_that_is_needed_is_downloaded_once(hub):
    said, checked = [], []

    path = resolve_model(NAME, report=said.append, check=checked.append)
    again = resolve_model(NAME, report=pytest.fail, check=pytest.fail)

    assert path == again
    assert names_in(path) == sorted(FILES.keys() - {"pytorch_model.bin"})
    assert checked == [CONFIG]
    assert said == [f"Fetching {NAME} from the Hugging Face hub"]
    assert hub.fetched[0] == "config.json"
    assert len(hub.fetched) == len(set(hub.fetched))


def test_a_model_that_cannot_run_costs_no_download_of_weights(hub):
    for _ in range(2):  # what is left of the first refusal is no model
        with pytest.raises(ModelError, match="LlamaForCausalLM cannot run here"):
            resolve_model(NAME, check=refuse)

    assert hub.fetched == ["config.json"]


def test_a_refused_model_is_fetched_whole_by_those_that_can_run_it(hub):
    with pytest.raises(ModelError):
        resolve_model(NAME, check=refuse)

    path = resolve_model(NAME)

    assert set(WEIGHTS) <= set(names_in(path))


def test_an_interrupted_download_is_taken_up_again(hub):
    path = resolve_model(NAME)
    (path / WEIGHTS[1]).unlink()

    assert resolve_model(NAME) == path
    assert (path / WEIGHTS[1]).read_bytes() == b"weights"


def test_a_tokenizer_comes_without_weights_and_weights_follow(hub):
    path = resolve_model(NAME, with_weights=False)
    fetched = names_in(path)

    assert resolve_model(NAME) == path
    assert fetched == ["config.json", "model.safetensors.index.json", "tokenizer.json"]
    assert set(WEIGHTS) <= set(names_in(path))


def test_a_repository_without_config_is_one_line(hub):
    del hub.repositories[NAME]["config.json"]

    with pytest.raises(NotFound, match=r"it has no config.json; of a repository of .gguf files, give the path of one\. Give a"):
        resolve_model(NAME)

    assert hub.fetched == []


def test_a_repository_that_does_not_exist_is_one_line(hub):
    with pytest.raises(NotFound) as caught:
        resolve_model("someone/nothing")

    assert caught.value.message.startswith("Model 'someone/nothing' cannot be had from the Hugging Face hub: ")
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("command", ["serve", "worker"])
def test_services_refuse_a_quantized_model_before_its_weights_are_downloaded(tmp_path, command):
    config = {**CONFIG, "quantization_config": {"quant_method": "awq"}}
    flags = (NAME, "--port", "0") if command == "serve" else ("--model", NAME, "--listen", "127.0.0.1:0")
    with HubServer({NAME: {**FILES, "config.json": json.dumps(config).encode()}}) as hub:
        environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"}
        result = subprocess.run(
            [sys.executable, "-m", "tetrad.cli", command, *flags, "--device", "cpu"],
            capture_output=True,
            text=True,
            timeout=60,
            env=environment,
        )

    assert result.returncode == 78
    assert "The model is quantized as awq, which needs the cuda device." in result.stderr
    assert hub.fetched == ["config.json"]
