"""Updates of the weights of models with draft layers, towers and GGUF files: new tensors serve, missing ones stay."""

import shutil

import gguf
import torch
from safetensors.torch import load_file, save_file

from tests.mtp_files import save_mtp
from tests.vision_files import save_vision_model
from tests.worker_svc.families.gguf_files import write_gguf
from tests.worker_svc.families.tiny_models import save_family
from tests.worker_svc.service_client import connect, error_of
from tests.worker_svc.worker.test_weight_updates import check, finish, fresh_tokens, source, tokens
from tetrad.services.errors import ModelError
from tetrad.v1 import worker_pb2

MTP = worker_pb2.SpeculativeConfig(method="mtp", num_speculative_tokens=2)


def save_changed(own, directory, *, without=()):
    """Write the model's weights, changed, but for those whose names begin with `without`."""
    directory.mkdir()
    tensors = load_file(own / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if not (without and name.startswith(without))}
    changed = {name: (tensor.flip(0) if tensor.dim() > 1 else tensor).contiguous() for name, tensor in kept.items()}
    save_file(changed, directory / "model.safetensors")
    return directory


def whole(own, new, directory):
    shutil.copytree(own, directory)
    shutil.copy(new / "model.safetensors", directory)
    return directory


def parameters_of(client):
    """The parameters of the loaded model's tower, without those of the text model that transformers makes beside it."""
    module = client.served.worker.weights.model.media.tower._module
    return [each.detach().clone() for name, each in module.named_parameters() if "language_model" not in name]


async def test_a_checkpoint_without_the_draft_layer_leaves_it_as_it_was(client, tmp_path):
    """As transformers saves such a model; the tokens are those of the new weights without drafts."""
    own = tmp_path / "own"
    own.mkdir()
    save_mtp(own, "glm")
    new = save_changed(own, tmp_path / "new", without=("model.layers.3.",))
    assert len(load_file(new / "model.safetensors")) < len(load_file(own / "model.safetensors"))
    await client.load(own, speculative=MTP)

    await check(client, own, new)
    await client.load(own, speculative=MTP, weights=source(new))
    await finish(client)

    assert await tokens(client) == await fresh_tokens(tmp_path, whole(own, new, tmp_path / "whole"))


async def test_the_tower_has_the_new_weights(client, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    save_vision_model(own, "llava")
    new = save_changed(own, tmp_path / "new")
    await client.load(own)
    before = parameters_of(client)

    await check(client, own, new)
    await client.load(own, weights=source(new))
    after = parameters_of(client)

    (tmp_path / "fresh").mkdir()
    async with connect(tmp_path / "fresh") as fresh:
        await fresh.load(whole(own, new, tmp_path / "whole"))
        assert all(map(torch.equal, after, parameters_of(fresh)))
    assert not all(map(torch.equal, after, before))


async def test_a_gguf_file_gets_another_gguf_file(client, tmp_path):
    (tmp_path / "own").mkdir()
    reference = save_family(tmp_path / "own", "qwen3")
    write_gguf(tmp_path / "own.gguf", "qwen3", reference, gguf.GGMLQuantizationType.Q8_0)
    with torch.no_grad():
        for parameter in reference.parameters():
            if parameter.dim() > 1:
                parameter.copy_(parameter.flip(0))
    write_gguf(tmp_path / "new.gguf", "qwen3", reference, gguf.GGMLQuantizationType.Q8_0)
    await client.load(tmp_path / "own.gguf")
    before = await tokens(client)

    await check(client, tmp_path / "own.gguf", tmp_path / "new.gguf")
    await client.load(tmp_path / "own.gguf", weights=source(tmp_path / "new.gguf"))

    assert before != await tokens(client) == await fresh_tokens(tmp_path, tmp_path / "new.gguf")
    assert isinstance(await error_of(check(client, tmp_path / "own.gguf", tmp_path / "own")), ModelError)
