"""Settings of the stacks and loads of the chaos tests: the simulated device, and a real model on the CPU."""

import socket
from typing import Any

from tests.chaos.catalogue import Sizes
from tests.chaos.run import Plan
from tetrad import EngineArgs
from tetrad.local_stack import StackSettings

MODEL = "smollm2-135m-instruct"
_SIM_STEP_S = 0.015


def sim_plan(seed: int, duration_s: float, **fields: Any) -> Plan:
    """Return the plan of a run on the simulated device, whose steps take as long as a fast accelerator's."""
    plan: dict[str, Any] = {
        "settings": _stack(device="sim", num_gpu_blocks_override=2048),
        "sizes": Sizes(min_tokens=8, max_tokens=200, long_prompt_tokens=5000),
        "num_requests": 75,
        "at_once": 24,
        "warm_up_rounds": 3,
        "answer_timeout_s": 90.0,
    }
    return Plan(seed=seed, duration_s=duration_s, **plan | fields)


def model_plan(seed: int, duration_s: float, **fields: Any) -> Plan:
    """Return the plan of a run on SmolLM2 in float32 with one thread, in which a token depends on its request alone."""
    plan: dict[str, Any] = {
        "settings": _stack(device="cpu", dtype="float32", threads=1, max_model_len=2048, num_gpu_blocks_override=256),
        "sizes": Sizes(min_tokens=8, max_tokens=48, long_prompt_tokens=400),
        "num_requests": 30,
        "at_once": 4,
        "warm_up_rounds": 2,
        "answer_timeout_s": 180.0,
        # Sums of floats depend on the shapes of the matrices: on what else is in the batch.
        "tolerance": 1e-3,
    }
    return Plan(seed=seed, duration_s=duration_s, **plan | fields)


def _stack(**engine: Any) -> StackSettings:
    args = EngineArgs(model=MODEL, **engine)
    settings = args.stack_settings(port=_free_port(), responses_store="none")
    worker = settings.worker.model_copy(update={"sim_seconds_per_step": _SIM_STEP_S})
    return StackSettings(settings.tokenizer, settings.engine_core, worker, settings.frontend)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
