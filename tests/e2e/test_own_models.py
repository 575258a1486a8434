"""Models that Tetrad does not know by itself, served by the real stack: by a plug-in, and by code that they bring."""

import json
import re
import tomllib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.toy_tokenizer import SPECIALS, toy_tokenizer
from tests.worker_svc.families.test_parity import verified
from tests.worker_svc.families.tiny_models import save_family
from tests.worker_svc.models.own_code import has_run, save_own_code
from tetrad import LLM, SamplingParams

PAGE = Path(__file__).parents[2] / "docs/models.md"
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
PROMPTS = [[5, 9, 200, 31], list(range(3, 60))]
HEAD_DIM = 16


def check_tokens(directory, reference, **options):
    """Serve a model and compare its tokens with those of transformers."""
    (directory / "tokenizer.json").write_text(toy_tokenizer())
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SPECIALS[0]})
    )
    with LLM(str(directory), device="cpu", max_model_len=256, num_gpu_blocks_override=64, **options) as llm:
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], GREEDY, use_tqdm=False)
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        token_ids = list(output.outputs[0].token_ids)
        assert len(token_ids) == GREEDY.max_tokens
        assert token_ids == verified(reference, prompt, token_ids)


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """Installs the package that the page shows, in a directory that the services' processes search."""
    blocks = dict(re.findall(r"^```\w+\n# (\S+)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL))
    project = tomllib.loads(blocks["pyproject.toml"])["project"]
    site = tmp_path / "site"
    info = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    (site / "tetrad_internlm2.py").write_text(blocks["tetrad_internlm2.py"])
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    [(group, points)] = project["entry-points"].items()
    lines = [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.setenv("PYTHONPATH", str(site))


def save_internlm2(directory):
    """Write a tiny Llama as an InternLM2 checkpoint; return transformers' model of the same weights."""
    reference = save_family(directory, "llama")
    tensors = load_file(directory / "model.safetensors")
    names = {
        "self_attn.o_proj": "attention.wo",
        "mlp.gate_proj": "feed_forward.w1",
        "mlp.up_proj": "feed_forward.w3",
        "mlp.down_proj": "feed_forward.w2",
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "ffn_norm",
        "embed_tokens": "tok_embeddings",
        "lm_head": "output",
    }
    pattern = re.compile("|".join(map(re.escape, names)))
    renamed = {pattern.sub(lambda found: names[found.group()], name): tensor for name, tensor in tensors.items()}
    for prefix in [name.removesuffix("self_attn.q_proj.weight") for name in tensors if "q_proj" in name]:
        q, k, v = (renamed.pop(f"{prefix}self_attn.{part}_proj.weight").view(2, -1, 64) for part in "qkv")
        renamed[f"{prefix}attention.wqkv.weight"] = torch.cat([q, k, v], 1).flatten(0, 1)
    save_file(renamed, directory / "model.safetensors", {"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    own = {"architectures": ["InternLM2ForCausalLM"], "model_type": "internlm2"}
    (directory / "config.json").write_text(json.dumps(config | own))
    return reference


def test_the_plug_in_that_the_page_shows_serves_its_model(plugin, tmp_path):
    directory = tmp_path / "model"
    directory.mkdir()
    reference = save_internlm2(directory)

    check_tokens(directory, reference)


def test_a_model_with_its_own_code_is_served_when_it_is_trusted(tmp_path):
    reference = save_own_code(tmp_path)

    check_tokens(tmp_path, reference, trust_remote_code=True)

    assert has_run(tmp_path)
