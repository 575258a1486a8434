"""Heads that draft from a model's hidden states: they propose the tokens of a plain computation, and change no output token.

EAGLE-3 heads and MTP layers are written as published checkpoints have them, with random weights.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from safetensors.torch import load_file

from tests.eagle3_files import save_eagle3
from tests.lora_files import save_lora
from tests.mtp_files import KINDS, save_mtp
from tests.worker_svc.conftest import save_tiny, tiny_config
from tests.worker_svc.families.gguf_files import write_gguf
from tests.worker_svc.runner.proposals import proposals_of
from tetrad.services.errors import ModelError
from tetrad.worker_svc.core.device import KvLayout, LoadRequest
from tetrad.worker_svc.core.lora import LoraLimits
from tetrad.worker_svc.core.plan import SamplingSpec

LAYOUT = KvLayout(num_blocks=200, block_size=8, max_model_len=256, max_num_seqs=16, max_num_batched_tokens=64)
GREEDY = SamplingSpec(temperature=0.0)
HIDDEN, LAYERS, K = 64, 7, 3
SIZES = {"hidden_size": HIDDEN, "intermediate_size": 80, "num_attention_heads": 4, "num_key_value_heads": 2}


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, 1e-5)


class EagleReference:
    """The head over a whole text at once, as its paper has it."""

    def __init__(self, target: torch.nn.Module, path: Path, *, adds_to_normed: bool = False) -> None:
        self.target, self.w, self._adds_to_normed = target, load_file(path / "model.safetensors"), adds_to_normed

    @torch.inference_mode()
    def propose(self, tokens: list[int]) -> list[int]:
        out = self.target(torch.tensor([tokens[:-1]]), output_hidden_states=True)
        states = torch.cat([out.hidden_states[layer][0] for layer in (2, LAYERS // 2, LAYERS - 3)], 1)
        hidden, ids = states @ self.w["fc.weight"].T, list(tokens[1:])
        for _ in range(K):
            stream = self._layer(hidden, torch.tensor(ids))
            logits = rms_norm(stream[-1], self.w["norm.weight"]) @ self.w["lm_head.weight"].T
            best = int(logits.argmax())
            ids.append(best + int(self.w["d2t"][best]))
            hidden = torch.cat([hidden, stream[-1:]])
        return ids[-K:]

    def _layer(self, hidden: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        w, length, dim = self.w, len(ids), HIDDEN // 4
        embeddings = rms_norm(self.target.model.embed_tokens.weight[ids], w["midlayer.input_layernorm.weight"])
        normed = rms_norm(hidden, w["midlayer.hidden_norm.weight"])
        x = torch.cat([embeddings, normed], 1)
        angles = torch.arange(length)[:, None] / 10000.0 ** (torch.arange(0, dim, 2) / dim)
        cos, sin = (torch.cat([each, each], 1)[:, None] for each in (angles.cos(), angles.sin()))

        def heads(name: str) -> torch.Tensor:
            return (x @ w[f"midlayer.self_attn.{name}_proj.weight"].T).view(length, -1, dim)

        def turned(each: torch.Tensor) -> torch.Tensor:
            first, second = each.chunk(2, -1)
            return each * cos + torch.cat([-second, first], -1) * sin

        q, k, v = turned(heads("q")), turned(heads("k")), heads("v")
        k, v = (each.repeat_interleave(2, 1) for each in (k, v))
        seen = F.scaled_dot_product_attention(*(each.transpose(0, 1) for each in (q, k, v)), is_causal=True)
        stream = normed if self._adds_to_normed else hidden
        stream = stream + seen.transpose(0, 1).flatten(1) @ w["midlayer.self_attn.o_proj.weight"].T
        y = rms_norm(stream, w["midlayer.post_attention_layernorm.weight"])
        gate, up = (y @ w[f"midlayer.mlp.{name}_proj.weight"].T for name in ("gate", "up"))
        return stream + (F.silu(gate) * up) @ w["midlayer.mlp.down_proj.weight"].T


class MtpReference:
    """The layer over a whole text at once, by transformers' own layer."""

    def __init__(self, model: torch.nn.Module, own: dict[str, torch.Tensor], *, is_qwen: bool = False) -> None:
        self.model, self.layer, self.own, self._is_qwen = model, model.model.layers[-1], own, is_qwen

    @torch.inference_mode()
    def propose(self, tokens: list[int]) -> list[int]:
        layers = self.model.model.layers
        self.model.model.layers = layers[:-1]
        hidden = self.model.model(torch.tensor([tokens[:-1]])).last_hidden_state[0]
        self.model.model.layers = layers
        ids, own = list(tokens[1:]), self.own
        for _ in range(K):
            embeddings = own["embed_tokens.weight"][ids].clone()
            if not self._is_qwen:
                embeddings[0] = 0
            both = [rms_norm(embeddings, own["enorm.weight"]), rms_norm(hidden, own["hnorm.weight"])]
            x = (torch.cat(both, 1) @ own["eh_proj.weight"].T)[None]
            positions = torch.arange(len(ids))[None]
            mask = torch.full((len(ids), len(ids)), float("-inf")).triu(1)[None, None]
            turns = self.model.model.rotary_emb(x, positions)
            stream = self.layer(x, attention_mask=mask, position_ids=positions, position_embeddings=turns)
            stream = (stream[0] if isinstance(stream, tuple) else stream).view(len(ids), -1)
            normed = rms_norm(stream[-1:], own["shared_head.norm.weight"])
            ids.append(int((normed[0] @ own["shared_head.head.weight"].T).argmax()))
            hidden = torch.cat([hidden, normed if self._is_qwen else stream[-1:]])
        return ids[-K:]


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """A model of seven layers: its directory, and transformers' own."""
    directory = tmp_path_factory.mktemp("target")
    return directory, save_tiny(directory, tiny_config("LlamaForCausalLM", **SIZES, num_hidden_layers=LAYERS))


@pytest.fixture(scope="module")
def eagle(tmp_path_factory):
    return save_eagle3(tmp_path_factory.mktemp("eagle"))


@pytest.fixture(scope="module", params=KINDS)
def mtp(request, tmp_path_factory):
    """A model with an MTP layer, and the layer's reference."""
    directory = tmp_path_factory.mktemp(request.param)
    return directory, MtpReference(*save_mtp(directory, request.param))


@pytest.fixture
def load(cpu):
    """Return a loader of a model with a drafter."""

    def load_path(path: Path, method: str = "", drafter: Path | None = None):
        request = LoadRequest(str(path), path, draft_method=method, draft_path=drafter)
        return cpu.load_model(request, lambda *_: None)

    return load_path


def fill(driver):
    for handle, sampling in enumerate((GREEDY, GREEDY, SamplingSpec(seed=6, temperature=0.7, top_k=30, top_p=0.9))):
        driver.add(handle, range(20 + handle, 33 + 4 * handle), sampling)
    return driver


def check_proposals(driver, propose):
    """Check greedy proposals behind chunks of prompts, right drafts and wrong ones."""
    driver.step({0: 6, 1: 8}, num_spec_tokens=K)
    result = driver.step({handle: driver.remaining(handle) for handle in driver.requests}, num_spec_tokens=K)
    drafted: list[int] = []
    for step in range(5):
        found = proposals_of(result)
        for handle in (0, 1):
            request = driver.requests[handle]
            if handle in found:
                expected = propose(request.prompt + request.output)
                assert found[handle] == expected[: len(found[handle])]
                drafted += found[handle]
        drafts = {handle: [*found.get(handle, [])[: step % 3], *([1] if step % 2 else [])] for handle in driver.requests}
        result = driver.verify(drafts, num_spec_tokens=K)
    assert len(drafted) > 15
    assert len(set(drafted)) > 3


def check_tokens(driver, plain, num_tokens=14):
    """Check that tokens are those of the model alone."""
    expected = fill(plain).generate(num_tokens)
    result = fill(driver).step({handle: driver.remaining(handle) for handle in driver.requests}, num_spec_tokens=K)
    while any(len(each.output) < num_tokens for each in driver.requests.values()):
        found = proposals_of(result) if result.proposals is not None else {}
        result = driver.verify({handle: found.get(handle, []) for handle in driver.requests}, num_spec_tokens=K)
    assert {handle: each.output[:num_tokens] for handle, each in driver.requests.items()} == expected


def test_an_eagle3_head_proposes_what_its_paper_says(load, make_driver, target, eagle):
    path, model = target

    check_proposals(fill(make_driver(load(path, "eagle3", eagle), LAYOUT)), EagleReference(model, eagle).propose)


def test_an_eagle3_head_may_add_to_normed_states(load, make_driver, target, tmp_path):
    path, model = target
    head = save_eagle3(tmp_path, norm_before_residual=True, eagle_aux_hidden_state_layer_ids=[2, 3, 4])

    driver = fill(make_driver(load(path, "eagle3", head), LAYOUT))

    check_proposals(driver, EagleReference(model, head, adds_to_normed=True).propose)


def test_tokens_with_an_eagle3_head_are_those_of_the_model_alone(load, make_driver, target, eagle):
    path, _ = target

    check_tokens(make_driver(load(path, "eagle3", eagle), LAYOUT), make_driver(load(path), LAYOUT))


def test_an_mtp_layer_proposes_what_transformers_layer_does(load, make_driver, mtp):
    path, reference = mtp

    check_proposals(fill(make_driver(load(path, "mtp"), LAYOUT)), reference.propose)


@pytest.mark.parametrize(("kind", "family"), [("glm", "glm4_moe"), ("deepseek", "deepseek_v3")])
def test_an_mtp_layer_of_a_gguf_file_proposes_what_transformers_layer_does(kind, family, load, make_driver, tmp_path):
    model, own = save_mtp(tmp_path, kind, n_group=1, topk_group=1)
    path = tmp_path / "model.gguf"
    write_gguf(path, family, model, mtp=own)

    check_proposals(fill(make_driver(load(path, "mtp"), LAYOUT)), MtpReference(model, own).propose)
    check_tokens(make_driver(load(path, "mtp"), LAYOUT), make_driver(load(path), LAYOUT))


def test_tokens_with_an_mtp_layer_are_those_of_the_model_alone(load, make_driver, mtp):
    path, _ = mtp

    check_tokens(make_driver(load(path, "mtp"), LAYOUT), make_driver(load(path), LAYOUT))


def test_a_head_computes_steps_that_ask_for_no_drafts(load, make_driver, target, eagle):
    """Their hidden states are gone afterwards."""
    path, model = target
    driver = fill(make_driver(load(path, "eagle3", eagle), LAYOUT))
    for _ in range(4):
        driver.step({handle: driver.remaining(handle) for handle in driver.requests})

    found = proposals_of(driver.verify({handle: [] for handle in driver.requests}, num_spec_tokens=K))

    request = driver.requests[0]
    assert found[0] == EagleReference(model, eagle).propose(request.prompt + request.output)[: len(found[0])]


def test_a_head_reads_embeddings_without_adapters(cpu, make_driver, target, eagle, tmp_path):
    """The rows of an adapter are those of the target's step; the head computes other rows."""
    path, model = target
    options = {"draft_method": "eagle3", "draft_path": eagle, "loras": LoraLimits(1, 8, 1)}
    loaded = cpu.load_model(LoadRequest("x", path, **options), lambda *_: None)
    loaded.loras.install(1, loaded.loras.read(save_lora(tmp_path, model, "embed_tokens")))
    driver = make_driver(loaded, LAYOUT)
    driver.add(0, range(20, 33), GREEDY)
    driver.add(1, range(21, 37), GREEDY, lora_id=1)

    drafts = proposals_of(driver.step({0: 13, 1: 16}, num_spec_tokens=K))

    request = driver.requests[0]
    assert drafts[0] == EagleReference(model, eagle).propose(request.prompt + request.output)[: len(drafts[0])]


def test_a_head_proposes_nothing_beyond_its_positions(load, make_driver, target, tmp_path):
    path, _ = target
    head = save_eagle3(tmp_path, max_position_embeddings=16)
    driver = fill(make_driver(load(path, "eagle3", head), LAYOUT))

    found = proposals_of(driver.step({handle: driver.remaining(handle) for handle in driver.requests}, num_spec_tokens=9))

    assert len(found[0]) == 16 - 14
    assert 2 not in found


def test_a_block_takes_the_memory_of_the_heads_layer(load, target, eagle):
    path, _ = target
    alone, both = (model.kv_groups(16)[0].block_size_bytes for model in (load(path), load(path, "eagle3", eagle)))

    assert both * LAYERS == alone * (LAYERS + 1)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "of architecture LlamaForCausalLM; an EAGLE-3 head is one of"),
        ({"num_hidden_layers": 2}, "head of 2 layers is not supported"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 9]}, r"layers \[1, 9\]; the target has layers 0 to 6"),
        ({"draft_vocab_size": 999}, "draft_vocab_size 999 must be 1 to its vocab_size 320"),
        ({"vocab_size": 400}, "The target has 320 tokens, the draft model 400"),
        ({"draft_vocab_size": 100}, "d2t has shape"),
    ],
)
def test_an_eagle3_head_that_does_not_fit_is_refused(load, target, tmp_path, changes, problem):
    with pytest.raises(ModelError, match=problem):
        load(target[0], "eagle3", save_eagle3(tmp_path, **changes))


def test_a_model_without_an_mtp_layer_is_refused(load, target):
    with pytest.raises(ModelError, match="has no layer that predicts further tokens"):
        load(target[0], "mtp")


def test_random_weights_have_no_mtp_layer(cpu, mtp):
    request = LoadRequest("x", mtp[0], draft_method="mtp", random_weights=True)

    with pytest.raises(ModelError, match="random weights have no such layer"):
        cpu.load_model(replace(request), lambda *_: None)
