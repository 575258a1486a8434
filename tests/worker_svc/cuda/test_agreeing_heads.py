"""Draft heads that agree with their model, on the CUDA device, interpreted: their drafts are accepted."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.eagle3_files import save_eagle3
from tests.mtp_files import save_mtp
from tests.worker_svc.cuda.draft_heads import ROOMY, SAMPLINGS, K, accepted, driver_of, save_target


def unit_rows() -> torch.Tensor:
    return torch.nn.functional.normalize(torch.randn(320, 64, generator=torch.Generator().manual_seed(9)))


def without_layers(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a model whose layers add nothing: a token follows from the one before it."""
    tensors = load_file(path)
    silent = {name: torch.zeros_like(value) for name, value in tensors.items() if "o_proj" in name or "down_proj" in name}
    return tensors | silent


def test_all_drafts_of_an_mtp_layer_that_agrees_are_accepted(tmp_path, load_cuda):
    """The layer only looks at its token, as the model does. Drawn tokens agree as well, because the noise does."""
    save_mtp(tmp_path, "glm")
    path, layer = tmp_path / "model.safetensors", "model.layers.3"
    tensors = without_layers(path)
    ones, nothing = torch.ones(64), torch.zeros(64, 64)
    agreeing = {
        f"{layer}.enorm.weight": ones,
        f"{layer}.eh_proj.weight": torch.cat([torch.eye(64), nothing], 1),
        f"{layer}.embed_tokens.weight": tensors["model.embed_tokens.weight"].clone(),
        f"{layer}.shared_head.norm.weight": tensors["model.norm.weight"].clone(),
        f"{layer}.shared_head.head.weight": tensors["lm_head.weight"].clone(),
    }
    save_file(tensors | agreeing, path)

    assert accepted(driver_of(load_cuda(tmp_path, draft_method="mtp"), ROOMY), 3) == [[K] * len(SAMPLINGS)] * 3


def test_the_first_draft_of_an_eagle3_head_that_agrees_is_accepted(tmp_path, load_cuda):
    """The model counts on by one, and the head by two from the state of the token before; its own state stays the same."""
    rows = unit_rows()
    save_target(tmp_path)
    model = {"model.embed_tokens.weight": rows, "lm_head.weight": 4 * rows.roll(1, 0), "model.norm.weight": torch.ones(64)}
    path = tmp_path / "model.safetensors"
    save_file(without_layers(path) | model, path)
    head = save_eagle3(tmp_path / "head", eagle_aux_hidden_state_layer_ids=[0, 1, 2])
    fuse = torch.cat([torch.eye(64), torch.zeros(64, 128)], 1)
    ids = torch.arange(320) < 200
    agreeing = {"fc.weight": fuse, "norm.weight": torch.ones(64), "lm_head.weight": 4 * rows.roll(2, 0)[:200], "t2d": ids}
    tensors = without_layers(head / "model.safetensors") | agreeing | {"d2t": torch.zeros(200, dtype=torch.int64)}
    save_file(tensors, head / "model.safetensors")

    found = accepted(driver_of(load_cuda(tmp_path, draft_method="eagle3", draft_path=head), ROOMY), 3)

    assert found == [[1] * len(SAMPLINGS)] * 3
