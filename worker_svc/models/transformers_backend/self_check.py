"""Self-check: compares the logits of a model with KV pages with those of its own attention, on two random sequences.

The sequences are computed together and in chunks, so the check finds a model that keeps other state between tokens than keys
and values.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.plan import NewRequest, SamplingSpec
from tetrad.worker_svc.core.step_inputs import build_step_inputs
from tetrad.worker_svc.kv_cache.cache import KvCache
from tetrad.worker_svc.models.transformers_backend.interface import IMPLEMENTATION, UnservableError
from tetrad.worker_svc.models.transformers_backend.model import TransformersModel

_BLOCK_SIZE = 16
_LENGTHS = (29, 12)
_STEPS = ((17, 9), (1, 1), (11, 2))
"""Number of tokens of each sequence in each step."""
_TOLERANCE = 2e-3
"""Largest difference, relative to the standard deviation of logits; rounding alone causes about 1e-5."""


@torch.inference_mode()
def check(model: TransformersModel, module: Any) -> None:
    """Raise UnservableError if the logits differ by more than the tolerance."""
    prompts = [np.random.default_rng(length).integers(0, model.config.vocab_size, length) for length in _LENGTHS]
    found = _paged(model, prompts)
    module.set_attn_implementation("eager")
    expected = [module(input_ids=torch.from_numpy(prompt)[None], use_cache=False).logits[0].float() for prompt in prompts]
    module.set_attn_implementation(IMPLEMENTATION)
    for logits, reference in zip(found, expected, strict=True):
        if not (logits - reference).abs().max() <= _TOLERANCE * reference.std():
            raise UnservableError("its logits over KV pages differ from those of its own attention")


def _paged(model: TransformersModel, prompts: Sequence[np.ndarray]) -> list[torch.Tensor]:
    """Return the logits [L, vocab_size] of each prompt."""
    num_groups, per_prompt = len(model.kv_cache_spec.groups), -(-max(_LENGTHS) // _BLOCK_SIZE)
    num_blocks = 1 + len(prompts) * num_groups * per_prompt
    cache = KvCache(model.kv_cache_spec, num_blocks=num_blocks, block_size=_BLOCK_SIZE)
    # In descending order, so that the check does not pass only because blocks are contiguous.
    blocks = np.arange(num_blocks - 1, 0, -1).reshape(len(prompts), num_groups, per_prompt)
    batch = InputBatch(max_num_seqs=len(prompts), max_model_len=max(_LENGTHS), block_size=_BLOCK_SIZE, num_groups=num_groups)
    slots = np.array([batch.add(_request(*each)) for each in enumerate(zip(prompts, blocks, strict=True))], np.int64)
    computed = np.zeros(len(prompts), np.int64)
    logits: list[list[torch.Tensor]] = [[] for _ in prompts]
    for counts in _STEPS:
        inputs = build_step_inputs(batch, slots, computed, np.array(counts, np.int64))
        token_ids, positions = torch.from_numpy(inputs.token_ids), torch.from_numpy(inputs.positions)
        hidden = model.forward(token_ids, positions, cache.layers, model.attention.build_metadata(inputs, batch))
        for slot, first, count in zip(inputs.slots, inputs.first_token, inputs.num_scheduled, strict=True):
            logits[int(np.flatnonzero(slots == slot)[0])].append(model.logits(hidden[first : first + count]))
        computed += counts
    return [torch.cat(parts) for parts in logits]


def _request(handle: int, prompt_and_blocks: tuple[np.ndarray, np.ndarray]) -> NewRequest:
    prompt, blocks = prompt_and_blocks
    return NewRequest(
        handle=handle,
        request_id=str(handle),
        token_ids=prompt,
        num_prompt_tokens=len(prompt),
        num_computed_tokens=0,
        num_scheduled_tokens=0,
        block_ids=blocks,
        sampling=SamplingSpec(),
        eos_token_id=None,
    )
