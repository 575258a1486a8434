"""Worker: the state (started, loaded, ready, asleep), device, model and KV cache of a worker process.

Every method runs on the compute thread, except `snapshot`, which only reads. Knows nothing of gRPC. Loading a model that is
loaded already, or allocating the layout that is allocated already, does nothing, so a restarted engine core is served at once.
"""

import gc
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from tetrad.services.errors import FailedPrecondition, InternalError, InvalidRequest, Unsupported
from tetrad.services.log import get_logger
from tetrad.worker_svc.core.device import (
    Device,
    GroupDevice,
    KvGroup,
    KvLayout,
    LoadedModel,
    LoadRequest,
    ModelInfo,
    Progress,
    SharesExperts,
)
from tetrad.worker_svc.core.layout_check import check_groups, check_layout
from tetrad.worker_svc.core.lora import ModelLoras
from tetrad.worker_svc.core.media import ModelMedia, media_of
from tetrad.worker_svc.core.plan import EncoderItem, SchedulerOutput
from tetrad.worker_svc.core.plan_check import check_drafter, check_plan
from tetrad.worker_svc.core.ranks import GroupPlace, ObedientRunner, Order, Orders
from tetrad.worker_svc.core.result import ExecutedStep
from tetrad.worker_svc.worker.cache_slot import CacheSlot, block_bytes
from tetrad.worker_svc.worker.group_part import GroupPart
from tetrad.worker_svc.worker.model_request import model_request
from tetrad.worker_svc.worker.model_slot import ModelSlot
from tetrad.worker_svc.worker.queued_steps import stale_epoch, step_failed
from tetrad.worker_svc.worker.sleep import KV_CACHE, WEIGHTS, Sleep, check_level, parts_to_wake
from tetrad.worker_svc.worker.snapshot import Snapshot, State, expert_tokens_of

log = get_logger()


class Worker:
    """A device with at most one model and one KV cache.

    Attributes:
        weights: the loaded model, and updates of its weights.
        cache: the KV cache, with its runner.
        part: the place in a group of workers.

    Args:
        device: the open device; the constructor calls `set_up`, so it has to run on the compute thread.
        trusts_code: whether code from a model's files may run.
        takes_media: whether the towers of models are loaded.
        processor_kwargs_json: see LoadRequest.
        logits_processors: names and classes of custom logits processors.
    """

    def __init__(
        self,
        device: Device,
        *,
        trusts_code: bool = False,
        takes_media: bool = True,
        processor_kwargs_json: str = "",
        logits_processors: tuple[tuple[str, type], ...] = (),
    ) -> None:
        device.set_up()
        self._request = partial(
            model_request,
            device=device.name,
            trusts_code=trusts_code,
            logits_processors=logits_processors,
            takes_media=takes_media,
            processor_kwargs_json=processor_kwargs_json,
        )
        self._device = device
        self.verifies_drafts, self.joins_groups = device.verifies_drafts, isinstance(device, GroupDevice)
        self.takes_embeddings, self.keeps_states = device.takes_embeddings, device.keeps_states
        self.weights = ModelSlot(device, self._give_back_memory)
        self.cache = CacheSlot(self._give_back_memory)
        self._sleep: Sleep | None = None
        self._stream_id = 0
        self._epoch = 0
        self.part = GroupPart(device)

    def snapshot(self) -> Snapshot:
        """Return the current state; safe on any thread."""
        model = self.weights.model
        return Snapshot(
            state=self._state,
            device=self._device.name,
            model=model.info if model else None,
            layout=self.cache.layout,
            num_requests=self.cache.num_requests,
            epoch=self._epoch,
            model_load_s=self.weights.load_s,
            kv_cache_bytes=self.cache.size_bytes,
            expert_tokens=expert_tokens_of(model),
            weights=self.weights.finished,
            weight_version=self.weights.version,
        )

    def join_group(self, place: GroupPlace) -> Orders | None:
        """Make this worker a rank of a group, or a single worker again; a model loaded for another place is dropped.

        Returns:
            On a member, the leader's orders; otherwise None.

        Raises:
            Unsupported: the device does not support groups.
            DeadlineExceeded, Unavailable: the ranks could not connect.
        """
        if self.part.is_left_for(place):
            self._drop_model()
        elif self.part.loses_runner(place):
            self._drop_runner()
        return self.part.join(place)

    def obey(self, order: Order) -> None:
        """Run an order of the leader; raises the device's errors."""
        runner = self.cache.ready_runner()
        assert isinstance(runner, ObedientRunner), "only a member has a leader"
        runner.obey(order)

    def load_model(self, model: str, report: Progress, **options: Any) -> ModelInfo:
        """Load a model, after dropping another one; raise NotFound or ModelError if it cannot be loaded.

        `options` are LoadRequest's fields.
        """
        request = self._request(model, **options)
        if self._sleep is not None and request == self.weights.request:
            self._wake_weights(self._sleep, report)
        elif self.weights.differs_in_weights(request):
            self._replace_weights(request, report)
        elif self.weights.model is None or request != self.weights.request:
            self._drop_model()
            self.weights.load(request, report)
        return self.loaded_model().info

    def check_weights(self, path: str, model: str, **options: Any) -> str:
        """Check the files of an update against a model's, see ModelSlot.check; return their digest. Safe on any thread."""
        return self.weights.check(self._request(model, **options), path)

    def kv_groups(self, block_size: int) -> tuple[KvGroup, ...]:
        """Return the groups of the KV cache."""
        return self.loaded_model().kv_groups(block_size)

    def available_memory(self, utilization: float, max_num_batched_tokens: int, max_num_encoder_tokens: int = 0) -> int:
        """Return the bytes available for KV blocks; the memory of the current cache counts as available.

        With the same arguments the result is the same as long as that cache exists, so a restarted engine core finds the cache
        unchanged.
        """
        model, question = self.loaded_model(), (utilization, max_num_batched_tokens, max_num_encoder_tokens)
        if (known := self.cache.memory_before(question)) is not None:
            return known
        self._drop_runner()
        self._check_takes_media("max_num_encoder_tokens", max_num_encoder_tokens)
        answer = self._device.available_memory(
            model,
            utilization=utilization,
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_encoder_tokens=max_num_encoder_tokens,
        )
        self.cache.note_memory(question, answer)
        return answer

    def initialize_kv_cache(self, layout: KvLayout, groups: Sequence[KvGroup] = ()) -> int:
        """Allocate blocks (or keep those of the same layout) and return their size in bytes.

        Raises FailedPrecondition if memory is too small, or if `groups` are not the model's; no groups mean one group.
        """
        model = self.loaded_model()
        own = model.kv_groups(layout.block_size)
        self._check_takes_media("encoder_cache_size", layout.encoder_cache_size)
        check_groups(groups, own)
        self.weights.finish()
        if not self.cache.has(layout):
            check_layout(layout, block_bytes(own))
            self._drop_runner()
            self.cache.allocate(model, layout, own, is_whole=self.part.is_whole)
            self.cache.fingerprint = self.weights.fingerprint((self._device.name, layout.block_size, own))
            self._sleep = None
        return self.cache.size_bytes

    def warm_up(self, report: Callable[[int, int], None]) -> None:
        """Run dummy steps, unless the worker is warm already.

        Raises Unavailable if another rank is lost, or if a worker of another engine, which has experts of this model, is not
        ready in time.
        """
        self.cache.ready_runner()
        model = self.loaded_model()
        if isinstance(model, SharesExperts):
            model.meet()
        self.cache.warm_up(report)

    def sleep(self, level: int) -> None:
        """Drop the KV cache, and move the weights to host memory (level 1), drop them (level 2) or let them be (level 3).

        Does nothing if the worker is asleep.
        """
        check_level(level)
        if self._sleep is not None:
            return
        model, layout = self.loaded_model(), self.cache.layout
        self._drop_runner()
        if level == 1:
            model.sleep()
        elif level == 2:
            self.weights.model = None
        self._sleep = Sleep(level, layout, has_weights=level == 3)
        del model
        self._give_back_memory()
        log.info("worker.asleep", level=level)

    def wake_up(self, tags: Iterable[str]) -> bool:
        """Restore some parts, see parts_to_wake; return whether a part is still asleep. Call `warm_up` afterwards."""
        if self._sleep is None:
            return False
        parts = parts_to_wake(self._sleep, tags)
        if WEIGHTS in parts:
            self._wake_weights(self._sleep, lambda _, __: None)
        if KV_CACHE in parts:
            if (layout := self._sleep.layout) is not None:
                self.initialize_kv_cache(layout, self.loaded_model().kv_groups(layout.block_size))
            self._sleep = None
        log.info("worker.awake", parts=sorted(parts), sleeps=self._sleep is not None)
        return self._sleep is not None

    def loaded_model(self) -> LoadedModel:
        """Return the loaded model; raise FailedPrecondition if there is none."""
        if self._sleep is not None and not self._sleep.has_weights:
            raise FailedPrecondition("The worker is asleep; call WakeUp or LoadModel first.", reason="NOT_READY")
        if self.weights.model is None:
            raise FailedPrecondition("No model is loaded; call LoadModel first.", reason="NOT_READY")
        return self.weights.model

    def model_loras(self) -> ModelLoras:
        """Return the adapters of the loaded model; raise Unsupported if it does not support adapters."""
        loras = self.loaded_model().loras
        if loras is None:
            raise Unsupported("This worker does not support LoRA adapters here; start with enable_lora.")
        return loras

    def begin_stream(self, epoch: int) -> int:
        """Start an Execute stream and return its id; it supersedes an earlier one, whose requests and adapters are removed.

        Raises FailedPrecondition, reason STALE_EPOCH, if the open stream belongs to an engine core of a newer epoch.
        """
        if epoch < self._epoch:
            raise stale_epoch()
        self.cache.ready_runner().forget_all()
        if (model := self.weights.model) is not None and model.loras is not None:
            model.loras.clear()
        self._supersede()
        self._epoch = epoch
        self.cache.exchange.open(self._stream_id, self.cache.contents)
        return self._stream_id

    def end_stream(self, stream_id: int) -> None:
        """Remove the stream's requests; do nothing if another stream has superseded it."""
        if stream_id == self._stream_id and self.cache.runner is not None:
            self._supersede()
            self.cache.runner.forget_all()

    def execute(self, stream_id: int, plan: SchedulerOutput) -> ExecutedStep:
        """Run one step of a stream, or queue it on the device.

        A failed step ends the stream, because later queued plans depend on its results.

        Raises:
            FailedPrecondition: the stream has ended or is superseded.
            InvalidRequest: the plan contradicts the layout or the known requests; reason INVALID_PLAN.
            InternalError: the device failed; reason STEP_FAILED.
        """
        if stream_id != self._stream_id:
            raise stale_epoch()
        try:
            runner, layout = self.cache.ready_runner(), self.cache.layout
            assert layout is not None
            check_drafter(plan, self.weights.request)
            check_plan(plan, layout, self.loaded_model().info.vocab_size, self.cache.num_groups)
            if plan.freed_media and (media := self.media) is not None:
                media.cache.free(plan.freed_media, plan.step_id)
            return runner.execute(plan)
        except InvalidRequest as error:
            self.end_stream(stream_id)
            raise InvalidRequest(error.message, reason="INVALID_PLAN") from error
        except Exception as error:
            self.end_stream(stream_id)
            raise self.step_failed(plan.step_id, error) from error

    def step_failed(self, step_id: int, error: Exception) -> InternalError:
        """Log and return the error of a step that failed with `error`; safe on any thread."""
        return step_failed(step_id, error, shares_experts=self._device.shares_experts)

    @property
    def media(self) -> ModelMedia | None:
        """The tower and the encoder cache of the loaded model; None: it takes only text. Safe on any thread."""
        return media_of(self.weights.model)

    def _check_takes_media(self, name: str, value: int) -> None:
        """Refuse room for media if the model takes only text; members of a group get the rows of images from the leader."""
        if value and self.media is None and self.part.is_leader:
            raise Unsupported(f"{name} {value}: the model on this worker takes only text.")

    @property
    def shares_blocks(self) -> bool:
        """Whether other workers can read blocks of the present KV cache, and write to it. Safe on any thread."""
        return self.cache.contents is not None

    def encode(self, stream_id: int, item: EncoderItem, after_step: int) -> None:
        """Encode a media item of a stream, and store its embeddings in the encoder cache; on the tower's thread.

        Args:
            stream_id: the stream; does nothing if it has ended or is superseded.
            item: the item.
            after_step: see EncodedItems.put.

        Raises a TetradError if the item cannot be encoded; any other error means that the device can no longer be used.
        """
        media = self.media
        if media is not None and stream_id == self._stream_id:
            media.encode(stream_id, item, after_step)

    def check_device(self) -> None:
        """Raise the device's error if every later call fails too: only a new process can use the device then."""
        self._device.check()

    @property
    def _state(self) -> State:
        if self._sleep is not None:
            return State.SLEEPING
        return State.READY if self.cache.is_warm else State.LOADED if self.weights.model else State.STARTED

    def _replace_weights(self, request: LoadRequest, report: Progress) -> None:
        """Load other weights of the same model; a worker that sleeps goes on sleeping without its KV cache."""
        self._drop_runner()
        sleep = self._sleep
        self.weights.replace(request, report, is_asleep=sleep is not None and not sleep.has_weights)
        if sleep is not None:
            sleep.has_weights = True

    def _wake_weights(self, sleep: Sleep, report: Progress) -> None:
        if sleep.has_weights:
            return
        if self.weights.model is None:
            assert self.weights.request is not None
            self.weights.load(self.weights.request, report)
        else:
            self.weights.model.wake_up()
        sleep.has_weights = True

    def _supersede(self) -> None:
        """Take the worker from the open stream, whose media items are deleted."""
        self._stream_id += 1
        self._epoch = 0
        self.cache.exchange.close()
        if (media := self.media) is not None:
            media.cache.restart(self._stream_id)

    def _drop_runner(self) -> None:
        self._supersede()
        self.cache.drop()

    def _drop_model(self) -> None:
        self._drop_runner()
        had_model = self.weights.model is not None
        self.weights.drop()
        self._sleep = None
        if had_model:
            self._give_back_memory()

    def _give_back_memory(self) -> None:
        gc.collect()  # runners and models may contain reference cycles
        self._device.give_back_memory()
