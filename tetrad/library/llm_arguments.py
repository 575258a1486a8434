"""Arguments of an LLM: converts a program's arguments to EngineArgs, and makes the AsyncLLM."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from tetrad.library.async_llm import AsyncLLM
from tetrad.library.engine_args import EngineArgs
from tetrad.library.llm_services import LocalServices, RemoteServices, Services
from tetrad.services.errors import InvalidRequest

# vLLM's LLM class computes larger steps than its server, since the latency of single tokens does not matter.
_OFFLINE_MAX_NUM_BATCHED_TOKENS = 8192

_POSITIONS = (
    "tokenizer",
    "tokenizer_mode",
    "skip_tokenizer_init",
    "trust_remote_code",
    "allowed_local_media_path",
    "tensor_parallel_size",
    "dtype",
    "quantization",
    "revision",
    "tokenizer_revision",
    "seed",
    "gpu_memory_utilization",
    "swap_space",
    "cpu_offload_gb",
    "enforce_eager",
    "max_seq_len_to_capture",
    "disable_custom_all_reduce",
    "disable_async_output_proc",
    "hf_token",
    "hf_overrides",
    "mm_processor_kwargs",
)
"""The positional arguments after `model`, in the order of vLLM 0.8."""

_OF_THE_FRONTEND = (
    "limit_mm_per_prompt",
    "language_model_only",
    "allowed_local_media_path",
    "allowed_media_domains",
    "enable_mm_embeds",
)
_OF_THE_CALLER = frozenset({"seed", "max_logprobs", "otlp_traces_endpoint", "disable_log_stats", *_OF_THE_FRONTEND})
"""Arguments that mean something with a target: the program's own process has a frontend."""


def engine_arguments(model: str, positional: tuple[Any, ...], named: Mapping[str, Any]) -> EngineArgs:
    """Return the EngineArgs of an LLM's arguments; TypeError with their names for unknown or repeated ones."""
    if len(positional) > len(_POSITIONS):
        raise TypeError(f"LLM takes at most {len(_POSITIONS) + 1} positional arguments, got {len(positional) + 1}")
    given = dict(zip(_POSITIONS, positional, strict=False))
    doubled = sorted(set(given) & set(named))
    if doubled:
        raise TypeError(f"LLM got several values for {', '.join(doubled)}")
    unknown = sorted(set(named) - {field.name for field in dataclasses.fields(EngineArgs)})
    if unknown:
        raise TypeError(f"LLM got unknown arguments: {', '.join(unknown)}; EngineArgs lists the known ones")
    return EngineArgs(model=model, **{"disable_log_stats": True, **given, **named})


def make_llm(args: EngineArgs, target: str | None = None, admin_target: str | None = None) -> "functools.partial[AsyncLLM]":
    """Return a function that makes an AsyncLLM: with its own services, or with those at `target`.

    Raises:
        InvalidRequest: engine arguments are given with a target, whose services have their own.
    """
    services: Services
    if target is None:
        if admin_target is not None:
            raise InvalidRequest("admin_target belongs to target=; a stack of its own needs none.", field="admin_target")
        if args.enable_chunked_prefill is not False:
            args.fallbacks = {"max_num_batched_tokens": _OFFLINE_MAX_NUM_BATCHED_TOKENS}
        services = LocalServices(args)
    else:
        _refuse_engine_arguments(args)
        services = RemoteServices(
            target,
            admin_target,
            max_logprobs=args.max_logprobs,
            otlp_endpoint=args.otlp_traces_endpoint,
            **args.media_settings(),
        )
    own = args if target is None else None
    return functools.partial(AsyncLLM, services, args=own, log_stats=not args.disable_log_stats)


def _refuse_engine_arguments(args: EngineArgs) -> None:
    default = EngineArgs()
    names = [field.name for field in dataclasses.fields(args) if field.name not in _OF_THE_CALLER]
    changed = [name for name in names if getattr(args, name) != getattr(default, name)]
    if changed:
        raise InvalidRequest(f"With target=, the services decide on {', '.join(changed)}: leave them out.", field=changed[0])
