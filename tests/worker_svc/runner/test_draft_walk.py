"""Scheduler and runner with a draft model, also in stages: the draft model's cache follows allocated and freed blocks.

Both models answer with a hash of the tokens that they find in their caches. So every proposal is right, unless the draft model
reads a block with other tokens. Plans and results go over the wire.
"""

import zlib
from collections import deque
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.engine_core_svc.scheduler.fake_drafts import UnjudgedDrafts
from tetrad.engine_core_svc.core.payload import WorkerPayload
from tetrad.engine_core_svc.core.request import Request, RequestStatus
from tetrad.engine_core_svc.core.wire import SamplingMessage
from tetrad.engine_core_svc.kv_cache.host_tier import HostTier
from tetrad.engine_core_svc.kv_cache.manager import KVCacheManager
from tetrad.engine_core_svc.scheduler.budget import NoStages
from tetrad.engine_core_svc.scheduler.limits import SchedulerLimits
from tetrad.engine_core_svc.scheduler.scheduler import Scheduler
from tetrad.engine_core_svc.scheduler.stage_filling import StageFilling
from tetrad.engine_core_svc.worker.wire import decode_result, encode_plan
from tetrad.v1 import types_pb2
from tetrad.worker_svc.api.wire import decode_plan, encode_result
from tetrad.worker_svc.core.device import KvLayout
from tetrad.worker_svc.core.result import finished
from tetrad.worker_svc.kv_cache.cache import KvCache, KvCacheSpec
from tetrad.worker_svc.kv_cache.layer_groups import LayerGroup
from tetrad.worker_svc.models.draft_head import NoTaps
from tetrad.worker_svc.runner.model_drafts import ModelDrafts
from tetrad.worker_svc.runner.model_runner import ModelRunner
from tetrad.worker_svc.runner.rank_channels import Arrival
from tetrad.worker_svc.runner.staged_runner import StagedRunner

VOCAB_SIZE, BLOCK_SIZE, MAX_LEN, NUM_BLOCKS = 50, 4, 48, 14
SPEC = KvCacheSpec((LayerGroup((0,)),), num_kv_heads=1, head_dim=1, dtype=torch.float32)
GREEDY = WorkerPayload(SamplingMessage(types_pb2.SamplingParams(temperature=0.0)))


def token_after(token_ids):
    return zlib.crc32(bytes(token_ids)) % VOCAB_SIZE


class HashModel:
    """A model whose keys are tokens; the hidden state of a token is the next token. It is its own builder of metadata."""

    config = SimpleNamespace(vocab_size=VOCAB_SIZE, max_position_embeddings=MAX_LEN)
    kv_cache_spec, embedding_size = SPEC, 0

    def __init__(self):
        self.attention = self
        self.under_way = deque()

    def build_metadata(self, inputs, batch):
        tables = batch.block_tables[0, np.repeat(inputs.slots, inputs.num_scheduled)]
        return torch.from_numpy(inputs.slot_mappings[0]), tables.astype(np.int64)

    def forward(self, token_ids, positions, caches, metadata, given=None):
        slots, tables = metadata
        keys = caches[0].view(-1, 2)[:, 0]
        keys[slots] = token_ids.float()
        places = (tables[:, :, None] * BLOCK_SIZE + np.arange(BLOCK_SIZE)).reshape(len(tables), -1)
        found = keys.numpy()[places].astype(int).tolist()
        hidden = [[token_after(row[: position + 1])] for row, position in zip(found, positions.tolist(), strict=True)]
        self.under_way.append(torch.tensor(hidden, dtype=torch.float32))
        return self.under_way[-1]

    def argmax(self, hidden):
        return hidden[:, 0].long().numpy(), np.zeros(len(hidden), np.float32)

    def expect_hidden(self, num_tokens, width):
        """Return what comes back from the last stage, in the place of the connections to the other ranks."""
        return Arrival(self.under_way.popleft(), None)


class SomeDrafts(UnjudgedDrafts):
    """Asks the worker in some steps, and changes some of its proposals."""

    def __init__(self, random, max_tokens):
        self._random, self.max_tokens = random, max_tokens

    def num_from_worker(self, num_requests):
        return self._random.choice((0, self.max_tokens))

    def propose(self, requests, result):
        return {key: [self._changed(token) for token in row] for key, row in result.draft_tokens.items()}

    def _changed(self, token):
        return token if self._random.random() < 0.8 else self._random.randrange(VOCAB_SIZE)


class Walk:
    """Requests of few prompts on few blocks."""

    def __init__(self, seed, num_stages):
        self.random = random = Random(seed)
        num_tokens, num_host_blocks = random.choice([5, 16, 64]), random.choice([0, 3, 20])
        kv_cache = KVCacheManager(
            NUM_BLOCKS, BLOCK_SIZE, max_step_tokens=num_tokens, connector=HostTier(num_host_blocks) if num_host_blocks else None
        )
        self.scheduler = Scheduler(
            SchedulerLimits(4, num_tokens, policy=random.choice(["fcfs", "priority"])),
            kv_cache,
            drafts=SomeDrafts(random, random.choice([1, 3, 5])),
            stages=StageFilling(num_stages) if num_stages > 1 else NoStages(),
        )
        layout, model = KvLayout(NUM_BLOCKS, BLOCK_SIZE, MAX_LEN, 4, num_tokens, num_host_blocks), HashModel()
        self.runner = ModelRunner(model, layout) if num_stages == 1 else StagedRunner(model, layout, model, NoTaps())
        own = KvCache(SPEC, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, num_host_blocks=num_host_blocks)
        self.runner.draft_with(ModelDrafts(self.runner, HashModel(), own))
        self.depth, self.in_flight, self.requests, self.num_proposed = num_stages + 1, deque(), [], 0

    def run(self):
        for _ in range(300):
            kind = self.random.random()
            if kind < 0.15:
                self.add()
            elif kind < 0.17 and self.scheduler.requests:
                key = self.random.choice(list(self.scheduler.requests))
                self.scheduler.finish_requests([key], RequestStatus.FINISHED_ABORTED)
            elif kind < 0.18:
                self.scheduler.reset_prefix_cache(preempt_running=True)
            else:
                self.random.choice([self.plan, self.deliver])()
        for _ in range(1000):
            self.plan()
            self.deliver()

    def add(self):
        key, start = len(self.requests) + 1, self.random.choice([0, 20])
        prompt = list(range(start, start + self.random.randint(3, 28)))
        self.requests.append(
            Request(
                key, f"r{key}", prompt, len(prompt), len(prompt) + self.random.randint(1, 17), sequence_number=key,
                priority=self.random.randint(0, 2), arrival_time=float(key), payload=GREEDY,
            )
        )  # fmt: skip
        self.scheduler.add_request(self.requests[-1])

    def plan(self):
        if len(self.in_flight) < self.depth and (plan := self.scheduler.schedule()) is not None:
            self.in_flight.append(self.runner.execute(decode_plan(encode_plan(plan).step)))

    def deliver(self):
        if not self.in_flight:
            return
        result = decode_result(encode_result(finished(self.in_flight.popleft())))
        self.scheduler.update(result)
        for key, proposal in result.draft_tokens.items():
            if (request := self.scheduler.requests.get(key)) is not None:
                self.num_proposed += len(proposal)
                assert list(proposal) == continuation(request.token_ids, len(proposal))


def continuation(token_ids, num_tokens):
    found = list(token_ids)
    for _ in range(num_tokens):
        found.append(token_after(found))
    return found[len(token_ids) :]


@pytest.mark.parametrize("num_stages", [1, 2, 3])
def test_every_proposal_is_the_models_own_next_token(num_stages):
    """Whatever is preempted, aborted, swapped, evicted and shared meanwhile, and wherever drafts were wrong."""
    walks = [Walk(seed, num_stages) for seed in range(8)]

    for walk in walks:
        walk.run()

    for walk in walks:
        assert not walk.scheduler.has_requests
        for request in walk.requests:
            prompt = request.token_ids[: request.num_prompt_tokens]
            assert request.token_ids == [*prompt, *continuation(prompt, request.num_output_tokens)]
    assert sum(walk.num_proposed for walk in walks) > 400
