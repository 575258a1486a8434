"""Worker: how far it has come (started, loaded, ready, asleep), and the device, model and runner behind that.

Every method runs on the compute thread, except `snapshot`, which only reads. Knows nothing of gRPC. Loading the model that is
loaded, or the layout that is allocated, changes nothing, so an engine core that restarts is served at once.
"""

import gc
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from tetrad.services.errors import FailedPrecondition, InternalError, InvalidRequest
from tetrad.services.log import get_logger
from tetrad.services.model_files import resolve_model
from tetrad.worker_svc.checkpoint.model_config import apply_overrides
from tetrad.worker_svc.core.device import (
    Device,
    KvGroup,
    KvLayout,
    LoadedModel,
    LoadRequest,
    ModelInfo,
    Progress,
)
from tetrad.worker_svc.core.host import size_on_disk, size_text
from tetrad.worker_svc.core.layout_check import LOWER_KV_CACHE, LOWER_STEP, check_layout
from tetrad.worker_svc.core.memory_shortage import memory_for
from tetrad.worker_svc.core.plan import PendingStep, Runner, StepPlan, StepResult
from tetrad.worker_svc.core.plan_check import check_plan
from tetrad.worker_svc.model_facts.check import check_config
from tetrad.worker_svc.worker.sleep import KV_CACHE, WEIGHTS, Sleep, check_level, parts_to_wake

log = get_logger()

_SMALLER_MODEL = "Raise that limit, or serve a smaller model (--model) or one with quantized weights (--quantization)."


class State(Enum):
    """How far a worker has come."""

    STARTED = 1
    LOADED = 2
    READY = 3
    SLEEPING = 4


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What GetInfo answers."""

    state: State
    device: str
    model: ModelInfo | None
    layout: KvLayout | None
    num_requests: int
    epoch: int  # of the engine core whose stream is open; 0: none is
    model_load_s: float  # 0: none is loaded
    kv_cache_bytes: int


class Worker:
    """One device, at most one model and one KV cache.

    Args:
        device: opened; `set_up` is called here, so construct the worker on the compute thread.
    """

    def __init__(self, device: Device) -> None:
        device.set_up()
        self._device = device
        self._load_request: LoadRequest | None = None
        self._model: LoadedModel | None = None
        self._layout: KvLayout | None = None
        self._runner: Runner | None = None
        self._sleep: Sleep | None = None
        self._is_warm = False
        self._model_load_s = 0.0
        self._kv_cache_bytes = 0
        self._stream_id = 0
        self._epoch = 0
        self._measured: tuple[tuple[float, int], int] | None = None  # what was asked of the memory, and the answer

    def snapshot(self) -> Snapshot:
        """Return the present state; may be called from any thread."""
        runner, model = self._runner, self._model
        num_requests = runner.num_requests if runner else 0
        return Snapshot(
            state=self._state,
            device=self._device.name,
            model=model.info if model else None,
            layout=self._layout,
            num_requests=num_requests,
            epoch=self._epoch,
            model_load_s=self._model_load_s,
            kv_cache_bytes=self._kv_cache_bytes,
        )

    def load_model(self, model: str, report: Progress, **options: str | int | bool) -> ModelInfo:
        """Load a model, dropping another one; NotFound or ModelError if that cannot be."""
        overrides = str(options.get("hf_overrides_json", ""))
        path = resolve_model(model, check=lambda config: check_config(apply_overrides(config, overrides), self._device.name))
        request = LoadRequest(model=model, path=path, **options)  # type: ignore[arg-type] # LoadRequest's fields
        if self._sleep is not None and request == self._load_request:
            self._wake_weights(self._sleep, report)
        elif self._model is None or request != self._load_request:
            self._drop_model()
            self._load(request, report)
        return self._loaded().info

    def kv_group(self, block_size: int) -> KvGroup:
        """Return the shape of the KV cache."""
        return self._loaded().kv_group(block_size)

    def available_memory(self, utilization: float, max_num_batched_tokens: int) -> int:
        """Return the bytes that KV blocks may take; those of the present cache count as free.

        The same question has the same answer as long as that cache exists: an engine core that restarts finds it as it left it.
        """
        model, question = self._loaded(), (utilization, max_num_batched_tokens)
        if self._runner is not None and self._measured is not None and self._measured[0] == question:
            return self._measured[1]
        self._drop_runner()
        answer = self._device.available_memory(model, utilization=utilization, max_num_batched_tokens=max_num_batched_tokens)
        self._measured = question, answer
        return answer

    def initialize_kv_cache(self, layout: KvLayout) -> int:
        """Allocate blocks (or keep those of the same layout) and return their bytes; FailedPrecondition if there is no room."""
        model = self._loaded()
        block_size_bytes = model.kv_group(layout.block_size).block_size_bytes
        if self._runner is None or layout != self._layout:
            check_layout(layout, block_size_bytes)
            self._drop_runner()
            with memory_for("The KV cache", layout.num_blocks * block_size_bytes, LOWER_KV_CACHE):
                self._runner = model.make_runner(layout)
            self._layout = layout
            self._sleep = None
            self._kv_cache_bytes = layout.num_blocks * block_size_bytes
            log.info("kv_cache.allocated", num_blocks=layout.num_blocks, block_size=layout.block_size)
        return layout.num_blocks * block_size_bytes

    def warm_up(self, report: Callable[[int, int], None]) -> None:
        """Run dummy steps, unless that has been done."""
        runner = self._ready_runner()
        if not self._is_warm:
            runner.forget_all()
            with memory_for("A step", None, LOWER_STEP):
                runner.warm_up(report)
            self._is_warm = True

    def sleep(self, level: int) -> None:
        """Drop the KV cache, and move the weights to host memory (level 1) or drop them, too (2). Asleep already: nothing."""
        check_level(level)
        if self._sleep is not None:
            return
        model, layout = self._loaded(), self._layout
        self._drop_runner()
        if level == 1:
            model.sleep()
        else:
            self._model = None
        self._sleep = Sleep(level, layout)
        del model
        self._give_back_memory()
        log.info("worker.asleep", level=level)

    def wake_up(self, tags: Iterable[str]) -> bool:
        """Undo `sleep` for some parts, see parts_to_wake; return whether something still sleeps. Warm up afterwards."""
        if self._sleep is None:
            return False
        parts = parts_to_wake(self._sleep, tags)
        if WEIGHTS in parts:
            self._wake_weights(self._sleep, _report_nothing)
        if KV_CACHE in parts:
            if self._sleep.layout is not None:
                self.initialize_kv_cache(self._sleep.layout)
            self._sleep = None
        log.info("worker.awake", parts=sorted(parts), sleeps=self._sleep is not None)
        return self._sleep is not None

    def begin_stream(self, epoch: int) -> int:
        """Start an Execute stream and return its id: an earlier one is superseded and its requests are forgotten.

        FailedPrecondition, reason STALE_EPOCH, if the open one belongs to an engine core of a newer epoch.
        """
        if epoch < self._epoch:
            raise stale_epoch()
        self._ready_runner().forget_all()
        self._stream_id += 1
        self._epoch = epoch
        return self._stream_id

    def end_stream(self, stream_id: int) -> None:
        """Forget the stream's requests; nothing if another stream has taken over."""
        if stream_id == self._stream_id and self._runner is not None:
            self._stream_id += 1
            self._epoch = 0
            self._runner.forget_all()

    def execute(self, stream_id: int, plan: StepPlan) -> StepResult | PendingStep:
        """Run one step of a stream, or queue it on the device.

        A step that fails ends the stream, because what is queued behind was planned on its results.

        Raises:
            FailedPrecondition: the stream is over or superseded.
            InvalidRequest: the plan contradicts the layout or what is known; reason INVALID_PLAN.
            InternalError: the device failed; reason STEP_FAILED.
        """
        if stream_id != self._stream_id:
            raise stale_epoch()
        try:
            runner = self._ready_runner()
            assert self._layout is not None
            check_plan(plan, self._layout, self._loaded().info.vocab_size)
            return runner.execute(plan)
        except InvalidRequest as error:
            self.end_stream(stream_id)
            raise InvalidRequest(error.message, reason="INVALID_PLAN") from error
        except Exception as error:
            self.end_stream(stream_id)
            raise step_failed(plan.step_id, error) from error

    @property
    def _state(self) -> State:
        if self._sleep is not None:
            return State.SLEEPING
        return State.READY if self._is_warm else State.LOADED if self._model else State.STARTED

    def _loaded(self) -> LoadedModel:
        if self._sleep is not None and not self._sleep.has_weights:
            raise FailedPrecondition("The worker is asleep; call WakeUp or LoadModel first.", reason="NOT_READY")
        if self._model is None:
            raise FailedPrecondition("No model is loaded; call LoadModel first.", reason="NOT_READY")
        return self._model

    def _ready_runner(self) -> Runner:
        if self._runner is None:
            raise FailedPrecondition("There is no KV cache; call LoadModel and InitializeKvCache first.", reason="NOT_READY")
        return self._runner

    def _load(self, request: LoadRequest, report: Progress) -> None:
        started = time.monotonic()
        what = f"Loading {request.path} ({size_text(size_on_disk(request.path))} on disk)"
        with memory_for(what, None, _SMALLER_MODEL):
            self._model = self._device.load_model(request, report)
        self._model_load_s = time.monotonic() - started
        self._load_request = request
        log.info("model.loaded", model=request.model, architecture=self._model.info.architecture)

    def _wake_weights(self, sleep: Sleep, report: Progress) -> None:
        if sleep.has_weights:
            return
        if self._model is None:
            assert self._load_request is not None
            self._load(self._load_request, report)
        else:
            self._model.wake_up()
        sleep.has_weights = True

    def _drop_runner(self) -> None:
        self._stream_id += 1
        self._epoch = 0
        had_runner = self._runner is not None
        self._runner, self._layout, self._is_warm, self._kv_cache_bytes = None, None, False, 0
        if had_runner:
            self._give_back_memory()

    def _drop_model(self) -> None:
        self._drop_runner()
        had_model = self._model is not None
        self._model, self._load_request, self._model_load_s = None, None, 0.0
        self._sleep = None
        if had_model:
            self._give_back_memory()

    def _give_back_memory(self) -> None:
        gc.collect()  # runners and models may refer to themselves in a ring
        self._device.give_back_memory()


def finish(step_id: int, step: PendingStep) -> StepResult:
    """Return what a queued step brought, on a thread that may wait; InternalError, reason STEP_FAILED, if the device failed."""
    try:
        return step.wait()
    except Exception as error:
        raise step_failed(step_id, error) from error


def step_failed(step_id: int, error: Exception) -> InternalError:
    """Log an error of the device and return that of its step."""
    log.error("step.failed", step_id=step_id, exc_info=error)
    return InternalError(f"Step {step_id} failed on the device: {error}", reason="STEP_FAILED")


def stale_epoch() -> FailedPrecondition:
    """Return the error of an engine core whose worker another one has taken over."""
    return FailedPrecondition("Another engine core has taken this worker over; a worker serves one.", reason="STALE_EPOCH")


def _report_nothing(done: int, total: int) -> None:
    """Progress of a load that nobody watches."""
