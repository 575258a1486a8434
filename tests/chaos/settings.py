"""Settings of the stacks and loads of the chaos tests: the simulated device, and a real model on the CPU."""

import dataclasses
import functools
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.stack import free_port
from tests.audio_files import save_audio_model
from tests.chaos.catalogue import FAIL_TOKEN_ID, Catalogue, Sizes
from tests.chaos.media_catalogue import MediaCatalogue
from tests.chaos.run import Plan
from tests.chaos.speech_catalogue import SpeechCatalogue
from tests.e2e.speech_reference import save_talkative_whisper
from tests.vision_files import save_vision_model
from tetrad import EngineArgs
from tetrad.stack.stack_settings import StackSettings

MODEL = "smollm2-135m-instruct"
_SIM_STEP_S = 0.015
_MEDIA_KINDS = [
    ("qwen3_vl", "image", 1.05),
    ("smolvlm", "image", 1.05),
    ("qwen3_5", "image", 1.3),
    ("qwen2_audio", "audio", 1.3),
    ("qwen2_5_vl", "video", 1.3),
]
"""Kind of model, modality of the requests, `memory_growth`. Some take many rounds to reach their level."""
SPEECH_SEED = len(_MEDIA_KINDS)
"""A seed of `media_plan` with which the model transcribes."""
_PIECE_S = 2
"""Seconds that this model reads at once."""
_ONE_PROCESS = {"image_processes": 1, "audio_processes": 1}


def sim_plan(seed: int, duration_s: float, **fields: Any) -> Plan:
    """Return the plan of a run on the simulated device, whose steps take as long as a fast accelerator's."""
    plan: dict[str, Any] = {
        "settings": _stack(device="sim", num_gpu_blocks_override=2048, **_speculation(seed)),
        "sizes": Sizes(min_tokens=8, max_tokens=200, long_prompt_tokens=5000),
        "num_requests": 81,
        "at_once": 24,
        "warm_up_rounds": 3,
        "answer_timeout_s": 90.0,
    }
    return Plan(seed=seed, duration_s=duration_s, **plan | fields)


def model_plan(seed: int, duration_s: float, **fields: Any) -> Plan:
    """Return the plan of a run on SmolLM2 in float32 with one thread, in which a token depends on its request alone."""
    plan: dict[str, Any] = {
        "settings": _stack(
            device="cpu", dtype="float32", threads=1, max_model_len=2048, num_gpu_blocks_override=256, **_speculation(seed)
        ),
        "sizes": Sizes(min_tokens=8, max_tokens=48, long_prompt_tokens=400),
        "num_requests": 27,
        "at_once": 4,
        "warm_up_rounds": 2,
        "answer_timeout_s": 180.0,
        # Sums of floats depend on the shapes of the matrices: on what else is in the batch.
        "tolerance": 1e-3,
    }
    return Plan(seed=seed, duration_s=duration_s, **plan | fields)


def embeds_plan(seed: int, duration_s: float, **fields: Any) -> Plan:
    """Return the plan of a run on two layers of SmolLM2's shape with random weights, which generate and embed."""
    engine = {"load_format": "dummy", "hf_overrides": {"num_hidden_layers": 2}, "runner": "generate", "convert": "embed"}
    settings = _stack(device="cpu", dtype="float32", threads=1, max_model_len=2048, num_gpu_blocks_override=256, **engine)
    return model_plan(
        seed,
        duration_s,
        **{"settings": settings, "catalogue": functools.partial(Catalogue, embeds=True), "num_requests": 30} | fields,
    )


def media_plan(seed: int, duration_s: float, **fields: Any) -> Plan:
    """Return the plan of a run on a tiny model that reads media; seeds take turns among kinds of models."""
    kinds = [*(functools.partial(_asked_in_chats, *kind) for kind in _MEDIA_KINDS), _speech]
    directory = Path(tempfile.gettempdir()) / f"tetrad-chaos-media-{seed}"
    directory.mkdir(exist_ok=True)
    media = kinds[seed % len(kinds)](directory)
    sizes = Sizes(min_tokens=8, max_tokens=48, long_prompt_tokens=300)
    return model_plan(seed, duration_s, **{"sizes": sizes, "num_requests": 39, "at_once": 8} | media | fields)


def _asked_in_chats(kind: str, modality: str, memory_growth: float, directory: Path) -> dict[str, Any]:
    """Write a model of media in chats; return the fields of its plan."""
    (save_audio_model if modality == "audio" else save_vision_model)(directory, kind)
    settings = _media_stack(directory, max_model_len=1024, max_num_batched_tokens=128, num_gpu_blocks_override=256)
    catalogue = functools.partial(MediaCatalogue, modality=modality)
    return {"settings": settings, "catalogue": catalogue, "memory_growth": memory_growth}


def _speech(directory: Path) -> dict[str, Any]:
    """Write a model that transcribes; return the fields of its plan. The KV cache is small: requests are preempted."""
    save_talkative_whisper(directory, num_seconds=_PIECE_S)
    settings = _media_stack(directory, max_model_len=448, max_num_batched_tokens=64, num_gpu_blocks_override=32)
    return {"settings": settings, "catalogue": functools.partial(SpeechCatalogue, piece_s=_PIECE_S), "memory_growth": 1.3}


def _media_stack(directory: Path, **engine: Any) -> StackSettings:
    settings = _stack(model=str(directory), device="cpu", dtype="float32", threads=1, **engine)
    # A second process would start with the first two items that a tokenizer has at a time, and look like a leak.
    return dataclasses.replace(settings, tokenizer=settings.tokenizer.model_copy(update=_ONE_PROCESS))


def prefill_plan(seed: int, duration_s: float, **fields: Any) -> Plan:
    """Return the plan of a run on two layers of SmolLM2's shape, with an engine core that computes prompts for another one."""
    engine = {"load_format": "dummy", "hf_overrides": {"num_hidden_layers": 2}, "num_prefill_engines": 1}
    settings = _stack(device="cpu", dtype="float32", threads=1, max_model_len=2048, num_gpu_blocks_override=256, **engine)
    return model_plan(seed, duration_s, **{"settings": settings} | fields)


def ranks_plan(seed: int, duration_s: float, **fields: Any) -> Plan:
    """Return the plan of a run on three ranks, with two layers of SmolLM2's shape and random weights."""
    return _ranks_plan(seed, duration_s, 2, {"tensor_parallel_size": 3}, fields)


def stages_plan(seed: int, duration_s: float, **fields: Any) -> Plan:
    """Return the plan of a run on three stages, with three layers of SmolLM2's shape and random weights."""
    return _ranks_plan(seed, duration_s, 3, {"pipeline_parallel_size": 3}, fields)


def _ranks_plan(seed: int, duration_s: float, num_layers: int, sizes: dict[str, int], fields: dict[str, Any]) -> Plan:
    engine = {"load_format": "dummy", "hf_overrides": {"num_hidden_layers": num_layers}, **sizes}
    settings = _stack(device="cpu", threads=1, max_model_len=2048, num_gpu_blocks_override=256, **engine)
    return model_plan(seed, duration_s, **{"settings": settings} | fields)


def _speculation(seed: int) -> dict[str, Any]:
    """Return the speculation of every other seed; requests with a prediction are drafted in all runs."""
    return {} if seed % 2 else {"speculative_config": {"method": "suffix"}}


def _stack(**engine: Any) -> StackSettings:
    args = EngineArgs(**{"model": MODEL, "max_logprobs": -1} | engine)
    settings = args.stack_settings(port=free_port())
    worker = settings.worker.model_copy(update={"sim_seconds_per_step": _SIM_STEP_S, "sim_fail_token_id": FAIL_TOKEN_ID})
    return dataclasses.replace(settings, worker=worker, num_tokenizers=None)
