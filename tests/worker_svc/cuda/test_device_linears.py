"""DeviceLinears: matrices of a model's files become layers: fused, with biases and reordered rows, counted in bytes."""

import pytest
import torch
from safetensors.torch import save_file

from tetrad.services.errors import ModelError
from tetrad.worker_svc.checkpoint.loader import WeightLoader
from tetrad.worker_svc.checkpoint.open import open_source
from tetrad.worker_svc.cuda.linears import DeviceLinears
from tetrad.worker_svc.layers.rotary import interleave_heads

IN, HEAD_DIM = 64, 16
X = torch.randn(3, IN, generator=torch.Generator().manual_seed(1))


def normal(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.fixture
def tensors():
    return {
        "q.weight": normal(48, IN),
        "q.bias": normal(48),
        "k.weight": normal(32, IN).to(torch.bfloat16),
        "v.weight": normal(16, IN),
        "norm.weight": normal(IN),
        "embed.weight": normal(40, IN),
    }


@pytest.fixture
def open_linears(tmp_path, tensors):
    def open_with(requested="", config=None, dtype=torch.float32):
        save_file(tensors, tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_text("{}")
        loader = WeightLoader(open_source(tmp_path), lambda *_: None)
        return DeviceLinears(config, requested, loader, torch.device("cpu"), dtype)

    return open_with


def test_products_over_one_input_are_one_layer_with_their_biases(open_linears, tensors):
    layer = open_linears().linear([("q", 48), ("k", 32), ("v", 16)], IN)

    expected = torch.cat([X @ tensors[f"{name}.weight"].float().T for name in "qkv"], 1)
    expected[:, :48] += tensors["q.bias"]
    torch.testing.assert_close(layer(X), expected)


def test_rows_of_rotated_parts_are_interleaved(open_linears, tensors):
    layer = open_linears().linear([("q", 48), ("v", 16)], IN, rotated=[True, False], head_dim=HEAD_DIM)

    weight, bias = (interleave_heads(tensors[f"q.{kind}"], HEAD_DIM) for kind in ("weight", "bias"))
    torch.testing.assert_close(layer(X), torch.cat([X @ weight.T + bias, X @ tensors["v.weight"].T], 1))


def test_an_embedding_is_a_table_of_its_own(open_linears, tensors):
    table = open_linears("int8").embedding("embed.weight", 40, IN)

    assert torch.equal(table, tensors["embed.weight"])


def test_everything_is_in_the_type_of_the_activations_and_counted(open_linears):
    linears = open_linears(dtype=torch.bfloat16)
    layer, norm = linears.linear([("q", 48), ("k", 32)], IN), linears.vector("norm.weight", IN)

    assert layer(X.to(torch.bfloat16)).dtype == norm.dtype == torch.bfloat16
    assert linears.weights_size_bytes == 2 * (80 * IN + 80 + IN)  # the bias is of all outputs


@pytest.mark.parametrize("name", ["mlp.router_correction", "mixer.A_log"])
def test_corrections_of_routers_and_decays_of_states_are_not_rounded(name, open_linears, tensors):
    """As in vLLM. Two corrections near 40 that differ by less than 0.25 would be the same number in bfloat16."""
    tensors[name] = torch.tensor([40.0, 40.01, 39.97])

    vector = open_linears(dtype=torch.bfloat16).vector(name, 3)

    assert torch.equal(vector, tensors[name])


@pytest.mark.parametrize(("name", "rows", "said"), [("q", 47, r"\(48, 64\).*\(47, 64\)"), ("o", 48, "no tensor o.weight")])
def test_a_matrix_that_the_files_do_not_have_is_one_line(open_linears, name, rows, said):
    with pytest.raises(ModelError, match=said):
        open_linears().linear([(name, rows)], IN)


def test_a_matrix_of_another_type_is_one_line(open_linears, tensors):
    tensors["q.weight"] = torch.zeros(48, IN, dtype=torch.int8)

    with pytest.raises(ModelError, match=r"q\.weight is of type int8, but the config asks for float32 or"):
        open_linears().linear([("q", 48)], IN)
