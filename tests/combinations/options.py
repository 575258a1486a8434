"""Draws the settings of a walk's services, and runs services with them."""

import json
import random
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.combinations.apis import served
from tests.combinations.asked import Client
from tests.combinations.checkpoints import Checkpoint
from tests.combinations.stack import ONE_OF_EACH, Sizes, Stack, running_stack

MAX_MODEL_LEN = 256
LARGEST_CALL = 12
"""Sequences of a call for 4 outputs of 3 prompts: a shorter queue would refuse it for ever."""
PROCESSOR = "tests.combinations.processors:Favourite"


@dataclass(frozen=True)
class Options:
    """Settings of an engine. All that are not given are those of an engine without limits."""

    engine_core: Mapping[str, Any]
    worker: Mapping[str, Any] = field(default_factory=dict)
    frontend: Mapping[str, Any] = field(default_factory=dict)
    sizes: Sizes = ONE_OF_EACH


def draw_options(rng: random.Random, checkpoint: Checkpoint, parser: str) -> Options:
    """Return random settings that change no answer."""
    block_size = rng.choice([1, 2, 4, 8, 16, 32])
    choices: dict[str, list[Any]] = {
        "block_size": [block_size],
        "num_gpu_blocks_override": [_num_blocks(rng, checkpoint, block_size)],
        "max_num_batched_tokens": [17, 33, 64, 300, 2048],
        "max_num_seqs": [2, 5, 16],
        "enable_prefix_caching": [True, True, False],
        "long_prefill_token_threshold": [0, 0, 7],
        "scheduling_policy": ["fcfs", "priority"],
        "priority_order": ["high_first", "low_first"],
        "pipeline_depth": [None, 1, 2, 4],
        "swap_space": [0.0, 0.0, 0.002],
        "max_decode_slowdown": [0, 1.0, 1.5],
        "max_loras": [1, 2],
        "max_cpu_loras": [None, 2],
        "max_num_queued_reqs": [None, None, LARGEST_CALL],
    }
    fields = {name: rng.choice(values) for name, values in choices.items()}
    if rng.random() < 0.1:
        fields |= {"enable_chunked_prefill": False, "max_num_batched_tokens": None, "long_prefill_token_threshold": 0}
    if not fields["enable_prefix_caching"]:
        fields["swap_space"] = 0.0
    sizes = rng.choice([ONE_OF_EACH, ONE_OF_EACH, *checkpoint.sizes])
    if sizes.prefill_cores:
        fields["enable_prefix_caching"] = True  # blocks are found by their content
    if not sizes.prefill_cores and checkpoint.speculative_configs and rng.random() < 0.6:
        fields["speculative_config"] = json.dumps(rng.choice(checkpoint.speculative_configs))
    frontend = {
        "stream_interval": rng.choice([1, 1, 5]),
        "reasoning_parser": parser,
        "max_num_requests": rng.choice([0, 0, 12]),
        "prefix_affinity": rng.choice([0.0, 16.0]),
        "min_remote_prefill_tokens": 1,
    }
    if "eagle3" in fields.get("speculative_config", ""):
        return Options(_given(fields), {}, frontend, sizes)  # torch runs it, which has float32 alone
    worker = {"kv_cache_dtype": rng.choice(checkpoint.kv_cache_dtypes)}
    return Options(_given(fields), worker, frontend, sizes)


def _given(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _num_blocks(rng: random.Random, checkpoint: Checkpoint, block_size: int) -> int:
    """Return at least what one sequence needs."""
    return round((MAX_MODEL_LEN / block_size + 2) * rng.choice([1.1, 1.5, 3.0, 30]) * checkpoint.num_groups) + 2


@asynccontextmanager
async def client_of(checkpoint: Checkpoint, options: Options) -> AsyncIterator[tuple[Client, Stack]]:
    """Run services with these settings."""
    adapters = tuple(f"{each.lora_name}={each.lora_path}" for each in checkpoint.adapters)
    frontend = {
        "served_model_names": ("base",),
        "lora_modules": adapters,
        "max_logprobs": -1,
        "tool_call_parser": "hermes",
        "responses_store": ":memory:",
        "ready_timeout_s": 60.0,
        **options.frontend,
    }
    common = {"max_model_len": MAX_MODEL_LEN, "enable_lora": bool(checkpoint.adapters), **checkpoint.engine}
    worker = {"logits_processors": (PROCESSOR,), **options.worker}
    settings = {"frontend": frontend, "worker": worker, "engine_core": common | dict(options.engine_core)}
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as directory:
        place = Path(directory)
        async with (
            running_stack(checkpoint.directory, place, options.sizes, **settings) as stack,
            served(stack.llm, place) as client,
        ):
            yield client, stack
