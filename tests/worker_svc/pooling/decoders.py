"""Tiny random decoders that pool, as transformers writes them, and steps that compute their prompts in chunks."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import PretrainedConfig, PreTrainedModel

from tetrad.worker_svc.core.device import KvLayout, LoadedModel
from tetrad.worker_svc.core.plan import CachedRequests, NewRequest, SamplingSpec, SchedulerOutput
from tetrad.worker_svc.core.pooling import PoolingSpec
from tetrad.worker_svc.core.result import ModelRunnerOutput, Runner, finished

VOCAB_SIZE = 128
BLOCK_SIZE = 4
SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 640,
    "pad_token_id": 0,
}
LENGTHS = (1, 2, 7, 20, 63, 7, 200)
_BLOCKS_OF_A_GROUP = 1000
"""Groups share the pool: none may have a block of another one."""
_NONE = np.empty(0, np.int64)
NO_CACHED = CachedRequests(_NONE, _NONE, _NONE, _NONE, np.empty((1, 0), np.int64))


def save_decoder(directory: Path, make: type[PreTrainedModel], config: PretrainedConfig) -> PreTrainedModel:
    """Write a checkpoint of random weights; return transformers' model."""
    torch.manual_seed(0)
    model = make(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(directory)
    return model


def hidden_of(model: PreTrainedModel, ids: Sequence[int]) -> torch.Tensor:
    """Return the last hidden states [L, H] of a prompt by transformers."""
    with torch.no_grad():
        hidden: torch.Tensor = model(torch.tensor([ids])).last_hidden_state[0]
    return hidden


def runner_of(model: LoadedModel, num_blocks: int = 2048) -> Runner:
    """Return a runner with room for 64 prompts of some hundred tokens."""
    return model.make_runner(KvLayout(num_blocks, BLOCK_SIZE, 600, 128, 1 << 16))


def new_request(
    handle: int,
    ids: Sequence[int],
    spec: PoolingSpec | None,
    first_block: int,
    num_scheduled: int | None = None,
    num_groups: int = 1,
) -> NewRequest:
    """Return a request whose blocks follow each other."""
    num_blocks = -(-len(ids) // BLOCK_SIZE)
    return NewRequest(
        handle=handle,
        request_id=str(handle),
        token_ids=np.array(ids, np.int64),
        num_prompt_tokens=len(ids),
        num_computed_tokens=0,
        num_scheduled_tokens=len(ids) if num_scheduled is None else min(num_scheduled, len(ids)),
        block_ids=np.arange(first_block, first_block + num_blocks) + np.arange(num_groups)[:, None] * _BLOCKS_OF_A_GROUP,
        sampling=SamplingSpec(temperature=0.0),
        pooling=spec,
    )


def run_in_chunks(
    runner: Runner, prompts: Sequence[Sequence[int]], spec: PoolingSpec | None, chunk: int | None = None, num_groups: int = 1
) -> list[np.ndarray]:
    """Return the answers of prompts that are computed together, `chunk` tokens of each in a step; None: whole."""
    first_block, requests = 1, []
    for handle, ids in enumerate(prompts):
        requests.append(new_request(handle, ids, spec, first_block, chunk, num_groups))
        first_block += -(-len(ids) // BLOCK_SIZE)
    answers = {each.handle: each.values for each in _run(runner, SchedulerOutput(0, requests, NO_CACHED)).pooled}
    computed = chunk or max(map(len, prompts))
    while left := [(handle, len(ids)) for handle, ids in enumerate(prompts) if len(ids) > computed]:
        cached = CachedRequests(
            handles=np.array([handle for handle, _ in left]),
            num_scheduled_tokens=np.array([min(computed + chunk, length) - computed for _, length in left]),
            num_computed_tokens=np.full(len(left), computed),
            num_new_blocks=np.zeros(len(left), np.int64),
            new_block_ids=np.empty((num_groups, 0), np.int64),
        )
        answers |= {each.handle: each.values for each in _run(runner, SchedulerOutput(0, [], cached)).pooled}
        computed += chunk
    runner.forget_all()
    return [answers[handle] for handle in range(len(prompts))]


def _run(runner: Runner, plan: SchedulerOutput) -> ModelRunnerOutput:
    result = finished(runner.execute(plan))
    assert not result.failures, result.failures
    return result
