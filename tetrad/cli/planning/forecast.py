"""Forecast: computes memory, tokens that fit, and the rates that a roofline allows, for one split of a model over GPUs.

A roofline is an upper limit: a step takes the time of its memory traffic or of its products, whichever is longer, plus the time
of its messages between GPUs. Overlap, and the times of launches, planning and sampling are not counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tetrad.cli.planning.gpu_types import GpuType
from tetrad.cli.planning.number_types import WeightBytes
from tetrad.cli.planning.splits import Split
from tetrad.cli.planning.stage import Stage, Step
from tetrad.services.errors import ModelError
from tetrad.worker_svc.core.ranks import Shard
from tetrad.worker_svc.core.ranks import Stage as StageOfRanks
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.model_facts.sharding import check_size, shard_config
from tetrad.worker_svc.model_facts.stages import check_stages, stage_layers

_ACTIVATION_BYTES = 2
_LOGIT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Workload:
    """The assumed load of the GPUs.

    Attributes:
        context: mean number of tokens of a running request.
        num_requests: number of running requests on all engines together.
        max_num_batched_tokens: maximum number of tokens of a step.
        max_num_seqs: maximum number of running requests of an engine.
        utilization: the usable share of a GPU's memory.
    """

    context: int
    num_requests: int
    max_num_batched_tokens: int
    max_num_seqs: int
    utilization: float


@dataclass(frozen=True, slots=True)
class Rate:
    """The speed with a number of requests.

    Attributes:
        num_requests: number of running requests on all engines.
        tokens_per_s: tokens per second of all requests.
        step_seconds: time between two tokens of one request.
        link_seconds: the part of this time in which GPUs exchange values.
    """

    num_requests: int
    tokens_per_s: float
    step_seconds: float
    link_seconds: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """The figures of one split; memory is that of the rank with the least free memory.

    Attributes:
        split: the split.
        weights_bytes: size of that rank's weights.
        kv_bytes: memory left for the cache of that rank; negative: the missing memory.
        kv_tokens: number of tokens that fit the caches of all engines, in requests with the workload's context.
        link_bytes: bytes that a GPU sends for each decoded token.
        one, many: rates with one request and with the workload's number; None: the model does not fit.
        prompt_tokens_per_s: prompt tokens per second of all engines together; None: the model does not fit.
    """

    split: Split
    weights_bytes: float
    kv_bytes: float
    kv_tokens: int
    link_bytes: float
    one: Rate | None
    many: Rate | None
    prompt_tokens_per_s: float | None


def forecast(
    config: ModelConfig,
    split: Split,
    gpu: GpuType,
    workload: Workload,
    *,
    weights: WeightBytes,
    cache_bytes: float,
    expert_parallel: bool = False,
    tower_bytes: float = 0.0,
) -> Forecast:
    """Return the figures of a split.

    Args:
        config: the description of the whole model.
        split: the ways in which it is divided.
        gpu: the type of every GPU.
        workload: the load of all engines.
        weights: sizes of tensors.
        cache_bytes: bytes of one number of keys and values.
        expert_parallel: whether each rank of a stage has whole experts.
        tower_bytes: see Stage.

    Raises:
        ModelError: the model cannot be split in this way.
    """
    sharded, layers = _divided(config, split, expert_parallel=expert_parallel)
    stages = [Stage(sharded, each, weights, cache_bytes=cache_bytes, tower_bytes=tower_bytes) for each in layers]
    engine = _Engine(config, stages, split, gpu)
    num_rows = min(workload.max_num_seqs, workload.max_num_batched_tokens)
    free = {
        stage: gpu.memory_bytes * workload.utilization
        - stage.weights_bytes
        - stage.step_bytes(workload.max_num_batched_tokens, num_rows)
        for stage in stages
    }
    least = min(stages, key=lambda stage: _requests_in(stage, free[stage], workload.context))
    num_fitting = _requests_in(least, free[least], workload.context)
    found = Forecast(
        split,
        least.weights_bytes,
        free[least],
        max(0, int(num_fitting * workload.context)) * split.data,
        engine.link_bytes,
        None,
        None,
        None,
    )
    running = min(workload.num_requests, int(num_fitting) * split.data, workload.max_num_seqs * split.data)
    if min(free.values()) <= 0 or running < 1:
        return found
    return replace(
        found,
        one=engine.decode(1, workload.context),
        many=engine.decode(running, workload.context),
        prompt_tokens_per_s=engine.prefill(workload),
    )


def _divided(config: ModelConfig, split: Split, *, expert_parallel: bool) -> tuple[ModelConfig, Sequence[range]]:
    """Return the description of the largest part of each layer, and the layers of each stage."""
    if expert_parallel and split.data > 1:
        raise ModelError(f"enable_expert_parallel with data_parallel_size {split.data} runs on the cpu device alone.")
    check_size(config, split.tensor, expert_parallel=expert_parallel)
    check_stages(config, split.pipeline)
    shard = Shard(split.tensor - 1, split.tensor)  # the last part is the largest one
    sharded = shard_config(config, shard, experts=shard if expert_parallel else None)
    return sharded, [stage_layers(config, StageOfRanks(index, split.pipeline), "last") for index in range(split.pipeline)]


def _requests_in(stage: Stage, size_bytes: float, context: int) -> float:
    """Return the number of requests with this context that a cache holds; infinite if they need no cache."""
    each = stage.cache_bytes_of(context)
    return size_bytes / each if each else float("inf")


class _Engine:
    """Computes the times of one engine's steps: of its stages, and of the exchanges within and between them."""

    def __init__(self, config: ModelConfig, stages: Sequence[Stage], split: Split, gpu: GpuType) -> None:
        self._config, self._stages, self._split, self._gpu = config, stages, split, gpu

    @property
    def link_bytes(self) -> float:
        """The bytes that one GPU sends for each decoded token: the maximum over the stages."""
        hidden, ranks = self._config.hidden_size * _ACTIVATION_BYTES, self._split.tensor
        ring = 2 * (ranks - 1) / ranks * hidden
        logits = self._config.vocab_size / ranks * _LOGIT_BYTES if ranks > 1 else 0
        return max(
            stage.num_sums * ring + (logits if stage.is_last else hidden / ranks if len(self._stages) > 1 else 0)
            for stage in self._stages
        )

    def decode(self, num_requests: int, context: int) -> Rate:
        """Return the rate with `num_requests`: engines share the requests, and all stages of an engine work concurrently."""
        per_engine = -(-num_requests // self._split.data)
        in_a_stage = -(-per_engine // len(self._stages))
        step = Step(in_a_stage, in_a_stage, context)
        link = [self._link_seconds(stage, step) for stage in self._stages]
        seconds = [self._work_seconds(stage, step) + each for stage, each in zip(self._stages, link, strict=True)]
        # A token passes all stages before its request's next token; with fewer requests than stages, some stages wait.
        round_seconds = max(sum(seconds), max(seconds) * -(-per_engine // in_a_stage))
        return Rate(num_requests, num_requests / round_seconds, round_seconds, sum(link))

    def prefill(self, workload: Workload) -> float:
        """Return the prompt tokens per second of all engines, with full steps and all stages busy."""
        num_prompts = max(1, workload.max_num_batched_tokens // workload.context)
        step = Step(workload.max_num_batched_tokens, num_prompts, workload.context / 2)
        slowest = max(self._work_seconds(stage, step) + self._link_seconds(stage, step) for stage in self._stages)
        return self._split.data * step.num_tokens / slowest

    def _work_seconds(self, stage: Stage, step: Step) -> float:
        return self._gpu.compute_seconds(stage.read_bytes(step), stage.flops(step))

    def _link_seconds(self, stage: Stage, step: Step) -> float:
        ranks, hidden = self._split.tensor, step.num_tokens * self._config.hidden_size * _ACTIVATION_BYTES
        seconds = stage.num_sums * self._gpu.all_reduce_seconds(hidden, ranks)
        if stage.is_last and ranks > 1:  # parts of the logits are sent to the rank that samples
            seconds += self._gpu.send_seconds(step.num_requests * self._config.vocab_size / ranks * _LOGIT_BYTES)
        if len(self._stages) > 1:  # hidden states are sent to the next stage; ids from the last stage to the first
            seconds += self._gpu.send_seconds(0 if stage.is_last else hidden / ranks)
        return seconds
