"""Facts: encodes the server, a model and the load as messages of openengine.v1.Control.

An unknown value is absent; the API distinguishes absent values from zero.
"""

import time
from collections.abc import Collection, Sequence
from operator import itemgetter

from tetrad.frontend.engine.facts import EngineInfo, EngineLoad
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.frontend.llm.model_directory import ModelDirectory
from tetrad.openengine_api import control_pb2
from tetrad.services.version import VERSION

_REVISION = 3
_OLDEST_CLIENT_REVISION = 3
"""The oldest revision that clients may use: earlier ones have other field numbers in KvOptions."""
_RELEASE = "b0cf2a4826d246192dc65b055dab6d2b38d2d67e"
_TOP_N = control_pb2.CANDIDATE_TOKEN_SELECTION_MODE_TOP_N
_IDS = control_pb2.CANDIDATE_TOKEN_SELECTION_MODE_TOKEN_IDS
_ALL = control_pb2.CANDIDATE_TOKEN_SELECTION_MODE_ALL
_GUIDES = (
    control_pb2.GUIDED_DECODING_MODE_JSON_SCHEMA,
    control_pb2.GUIDED_DECODING_MODE_REGEX,
    control_pb2.GUIDED_DECODING_MODE_EBNF_GRAMMAR,
    control_pb2.GUIDED_DECODING_MODE_STRUCTURAL_TAG,
    control_pb2.GUIDED_DECODING_MODE_CHOICE,
    control_pb2.GUIDED_DECODING_MODE_JSON_OBJECT,
)


def server_info(models: ModelDirectory) -> control_pb2.ServerInfo:
    """Return the facts of the server; facts of engine cores are those of the first model."""
    llm = models.first
    engine = llm.engine_info
    return control_pb2.ServerInfo(
        engine_name="tetrad",
        engine_version=VERSION,
        engine_role=control_pb2.ENGINE_ROLE_AGGREGATED,
        instance_id=instance_id(engine),
        supported_models=[name for each in models.started() for name in each.model_names.names],
        parallelism=control_pb2.ParallelismInfo(
            tensor_parallel_size=engine.tensor_parallel_size,
            pipeline_parallel_size=engine.pipeline_parallel_size,
            data_parallel_size=llm.num_engines,
        ),
        kv_connector=control_pb2.KvConnectorInfo(enabled=False),
        schema_revision=_REVISION,
        minimum_client_revision=_OLDEST_CLIENT_REVISION,
        schema_release=_RELEASE,
        capacity=control_pb2.DeploymentCapacity(
            kv_block_size=engine.block_size,
            total_kv_blocks=engine.num_gpu_blocks * llm.num_engines,
            max_running_requests=engine.max_num_seqs,
            max_batched_tokens=engine.max_num_batched_tokens,
            max_loras=engine.max_loras if engine.supports_lora else None,
        ),
    )


def model_info(llm: AsyncLLM) -> control_pb2.ModelInfo:
    """Return the facts of a model."""
    names, formats, generates = llm.model_names, llm.chat_formats, llm.generates
    return control_pb2.ModelInfo(
        model_id=names.root,
        served_model_name=names.names[0],
        served_model_aliases=names.names[1:],
        max_context_length=llm.max_model_len,
        max_output_tokens=llm.max_model_len - 1 if generates else None,
        tokenizer=control_pb2.TokenizerInfo(source=names.root),
        supports_text_input=generates,
        supports_token_ids_input=generates,
        generation=_generation(llm) if generates else None,
        supports_lora=llm.engine_info.supports_lora,
        supports_multimodal=False,
        reasoning_parser="" if formats.reasoning is None else formats.reasoning.name,
        tool_call_parser="" if formats.tools is None else formats.tools.name,
    )


def load_info(
    engine: EngineInfo, ranks: Sequence[int], loads: Sequence[EngineLoad | None], *, include_per_rank: bool
) -> control_pb2.LoadInfo:
    """Return the load of the engine cores that answered.

    Args:
        engine: the description of the first engine core.
        ranks: the ranks of the engine cores.
        loads: their loads; None: no answer.
        include_per_rank: whether to list the load of each engine core, too.
    """
    message = control_pb2.LoadInfo(instance_id=instance_id(engine), timestamp_unix_nanos=time.time_ns())
    known = {rank: load for rank, load in sorted(zip(ranks, loads, strict=True), key=itemgetter(0)) if load is not None}
    if known:
        _fill_sums(message, known.values())
    if include_per_rank:
        message.ranks.extend(_rank_load(rank, load) for rank, load in known.items())
    return message


def instance_id(engine: EngineInfo) -> str:
    """Return a name that changes with each start of the first engine core."""
    return f"{engine.epoch:x}"


def _generation(llm: AsyncLLM) -> control_pb2.GenerationCapabilities:
    most = llm.settings.max_logprobs
    max_top_n = None if most == -1 else most
    return control_pb2.GenerationCapabilities(
        prompt_logprobs=control_pb2.LogprobCapabilities(
            supported=True, candidate_selection_modes=_modes(most), max_top_n=max_top_n
        ),
        output_logprobs=control_pb2.LogprobCapabilities(
            supported=True, candidate_selection_modes=[*_modes(most), _IDS], max_top_n=max_top_n
        ),
        guided_decoding=control_pb2.GuidedDecodingCapabilities(supported=True, modes=_GUIDES),
        max_num_sequences=llm.settings.max_n,
        supports_priority=llm.engine_info.priority_scheduling,
        supports_stop_in_output=True,
        supports_cache_salt=True,
        supports_prefix_cache_bypass=True,
    )


def _modes(most: int) -> list[control_pb2.CandidateTokenSelectionMode]:
    """Return how clients may select candidates; ALL is included only if the number of candidates has no limit."""
    return [_TOP_N, _ALL] if most == -1 else [_TOP_N]


def _fill_sums(message: control_pb2.LoadInfo, loads: Collection[EngineLoad]) -> None:
    message.running_requests = sum(load.scheduler.num_running for load in loads)
    message.queued_requests = sum(load.scheduler.num_waiting for load in loads)
    message.used_kv_blocks = sum(load.num_gpu_blocks - load.num_free_blocks for load in loads)
    message.total_kv_blocks = sum(load.num_gpu_blocks for load in loads)
    message.waiting_tokens = sum(load.num_waiting_tokens for load in loads)


def _rank_load(rank: int, load: EngineLoad) -> control_pb2.RankLoadInfo:
    return control_pb2.RankLoadInfo(
        data_parallel_rank=rank,
        running_requests=load.scheduler.num_running,
        queued_requests=load.scheduler.num_waiting,
        used_kv_blocks=load.num_gpu_blocks - load.num_free_blocks,
        total_kv_blocks=load.num_gpu_blocks,
    )
