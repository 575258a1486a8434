"""A plain generation loop in torch, the baseline of the worker: the same weights, F.linear, dense KV, fused attention, greedy.

Products with the same input are fused and KV is preallocated; there are no page tables, no sampler, and all requests start and
end together. It is also a reference for parity, because it shares no layer with the worker. The program runs in a separate
process and answers requests line by line (peers/lines.py).
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812 - the name it has everywhere

from benchmarks.peers.lines import answer, take_stdout
from tetrad.services.hub.model_files import resolve_model
from tetrad.worker_svc.checkpoint.loader import WeightLoader
from tetrad.worker_svc.checkpoint.open import open_source
from tetrad.worker_svc.families.registry import read_config
from tetrad.worker_svc.model_facts.config import ModelConfig


class PlainLlama:
    """A Llama over dense KV [B, kv_heads, max_len, head_dim] per layer; all rows have the same length.

    Args:
        path: a directory with safetensors, or a .gguf file; weights are dequantized to float32.
    """

    def __init__(self, path: Path) -> None:
        source = open_source(path)
        self.config: ModelConfig = read_config(source.config)
        config, loader = self.config, WeightLoader(source, lambda *_: None)
        hidden, middle, dim = config.hidden_size, config.layers[0].intermediate_size, config.head_dim
        query, key = config.num_heads * dim, config.num_kv_heads * dim

        def fused(prefix: str, sizes: dict[str, int]) -> torch.Tensor:
            return torch.cat([loader.get(f"{prefix}.{name}.weight", (size, hidden)) for name, size in sizes.items()])

        self._embedding = loader.get("model.embed_tokens.weight", (config.vocab_size, hidden))
        self._layers = []
        for index in range(config.num_layers):
            at = f"model.layers.{index}"
            self._layers.append(
                (
                    loader.get(f"{at}.input_layernorm.weight", (hidden,)),
                    fused(f"{at}.self_attn", {"q_proj": query, "k_proj": key, "v_proj": key}),
                    loader.get(f"{at}.self_attn.o_proj.weight", (hidden, query)),
                    loader.get(f"{at}.post_attention_layernorm.weight", (hidden,)),
                    fused(f"{at}.mlp", {"gate_proj": middle, "up_proj": middle}),
                    loader.get(f"{at}.mlp.down_proj.weight", (hidden, middle)),
                )
            )
        self._norm = loader.get("model.norm.weight", (hidden,))
        tied = config.tie_word_embeddings
        self._lm_head = self._embedding if tied else loader.get("lm_head.weight", (config.vocab_size, hidden))
        [rope] = config.ropes
        assert rope is not None
        self._frequencies = rope.theta ** -(torch.arange(0, dim, 2).float() / dim)

    def new_cache(self, batch: int, max_len: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return zeroed keys and values per layer."""
        shape = (batch, self.config.num_kv_heads, max_len, self.config.head_dim)
        return [(torch.zeros(shape), torch.zeros(shape)) for _ in self._layers]

    @torch.inference_mode()
    def step(self, ids: torch.Tensor, start: int, cache: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        """Return the logits [B, V] after ids [B, T], whose first token is at position `start`."""
        config = self.config
        batch, length = ids.shape
        x = self._embedding[ids]
        angles = torch.outer(torch.arange(start, start + length).float(), self._frequencies).repeat(1, 2)
        cos, sin = angles.cos(), angles.sin()
        sizes = [config.num_heads * config.head_dim, *[config.num_kv_heads * config.head_dim] * 2]
        for (norm, qkv, out, mlp_norm, gate_up, down), (keys, values) in zip(self._layers, cache, strict=True):
            heads = torch.split(F.linear(F.rms_norm(x, norm.shape, norm, config.norm_eps), qkv), sizes, -1)
            q, k, v = (part.view(batch, length, -1, config.head_dim).transpose(1, 2) for part in heads)
            end = start + length
            keys[:, :, start:end], values[:, :, start:end] = _rotate(k, cos, sin), v
            attended = F.scaled_dot_product_attention(
                _rotate(q, cos, sin), keys[:, :, :end], values[:, :, :end], is_causal=length > 1, enable_gqa=True
            )
            x = x + F.linear(attended.transpose(1, 2).reshape(batch, length, -1), out)
            gate, up = F.linear(F.rms_norm(x, mlp_norm.shape, mlp_norm, config.norm_eps), gate_up).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, down)
        return F.linear(F.rms_norm(x[:, -1], self._norm.shape, self._norm, config.norm_eps), self._lm_head)


def _rotate(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = heads.shape[-1] // 2
    return heads * cos + torch.cat([-heads[..., half:], heads[..., :half]], -1) * sin


class PlainEngine:
    """PlainLlama as a lines.Engine."""

    def __init__(self, model: PlainLlama) -> None:
        self._model = model

    def decode(self, batch: int, steps: int, context: int) -> float:
        """Return the seconds of `steps` greedy steps of all rows from `context` tokens on; one earlier step is not counted."""
        cache = self._model.new_cache(batch, context + steps + 1)
        ids = torch.randint(0, self._model.config.vocab_size, (batch, 1))
        ids = self._model.step(ids, context, cache).argmax(-1, keepdim=True)
        started = time.perf_counter()
        for position in range(context + 1, context + 1 + steps):
            ids = self._model.step(ids, position, cache).argmax(-1, keepdim=True)
        return time.perf_counter() - started

    def prefill(self, length: int) -> float:
        """Return the seconds that one prompt takes."""
        ids = torch.randint(0, self._model.config.vocab_size, (1, length))
        cache = self._model.new_cache(1, length)
        started = time.perf_counter()
        self._model.step(ids, 0, cache)
        return time.perf_counter() - started


def main() -> None:
    """Load the model that the first argument names, and answer requests; see lines.py."""
    answers = take_stdout()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    answer(PlainEngine(PlainLlama(resolve_model(sys.argv[1]))), answers)


if __name__ == "__main__":
    main()
