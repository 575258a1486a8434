"""Model slot: the loaded model of a worker, and during an update of its weights the model with the weights before.

Used by worker.py, on the compute thread. The weights before stay in host memory until the update is finished: after a failed
load they are back at once, and so they are if another rank of the group has failed. Knows nothing of KV caches and runners.
"""

import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import cast

from tetrad.services.errors import ModelError, Unsupported
from tetrad.services.log import get_logger
from tetrad.worker_svc.checkpoint.fingerprint import fingerprint, sample_files
from tetrad.worker_svc.checkpoint.replacement_path import find_replacement
from tetrad.worker_svc.core.device import Device, LoadedModel, LoadRequest, ModelInfo, NewWeights, Progress, SharesExperts
from tetrad.worker_svc.core.host import available_memory_bytes, size_on_disk, size_text
from tetrad.worker_svc.core.memory_shortage import memory_for, not_available

_SMALLER_MODEL = "Raise that limit, or serve a smaller model (--model) or one with quantized weights (--quantization)."
_MAY_DIFFER = ("weights_size_bytes", "weights_dtype")
"""Facts of a model that other weights may change: nothing is planned by them."""
_ANY_BLOCK_SIZE = 16

log = get_logger()


@dataclass(frozen=True, slots=True)
class _Loaded:
    request: LoadRequest
    model: LoadedModel
    samples: bytes
    version: str


class ModelSlot:
    """At most one loaded model.

    Args:
        device: loads models.
        give_back_memory: returns the memory of a dropped model to the device.

    Attributes:
        model: the loaded model; None: there is none.
        request: the request that loaded it, or that loads it again after a sleep; None: there was none.
        load_s: seconds of the last load; 0: no model is loaded.
    """

    def __init__(self, device: Device, give_back_memory: Callable[[], None]) -> None:
        self._device, self._give_back_memory = device, give_back_memory
        self.model: LoadedModel | None = None
        self.request: LoadRequest | None = None
        self._samples = b""  # of its files, see checkpoint/fingerprint.py
        self.load_s = 0.0
        self._version = ""
        self._before: _Loaded | None = None  # during an update

    @property
    def finished(self) -> NewWeights | None:
        """The last finished update; None: the weights are the model's own."""
        request = self.request if self._before is None else self._before.request
        return None if request is None else request.weights

    @property
    def version(self) -> str:
        """The name of the weights of `finished`; empty: they have none."""
        return self._version if self._before is None else self._before.version

    def name(self, version: str) -> None:
        """Name the present weights."""
        self._version = version

    def load(self, request: LoadRequest, report: Progress) -> None:
        """Load a model into the empty slot."""
        started = time.monotonic()
        path = request.path if request.weights is None else find_replacement(request.weights.path)
        with memory_for(f"Loading {path} ({size_text(size_on_disk(path))} on disk)", None, _SMALLER_MODEL):
            self.model, self._samples = self._read(request, report), sample_files(request)
        self.load_s = time.monotonic() - started
        self.request = request
        log.info("model.loaded", model=request.model, architecture=self.model.info.architecture)

    def differs_in_weights(self, request: LoadRequest) -> bool:
        """Return whether a request differs from the present one in weights alone."""
        return self.request is not None and request != self.request == replace(request, weights=self.request.weights)

    def replace(self, request: LoadRequest, report: Progress, *, is_asleep: bool) -> None:
        """Load other weights of the same model, and keep those before until `finish`; the caller has dropped the runner.

        Args:
            request: differs from the present one in weights alone.
            report: see Device.load_model.
            is_asleep: whether the present weights sleep, or were dropped at level 2.

        Raises ModelError, without any change, if the weights cannot be loaded or are those of another model.
        """
        if self._before is not None and self._before.request == request:
            self._restore(self._before)
            return
        self.finish()
        before, kept, samples = self.request, self.model, self._samples
        if kept is not None:
            _check_room(kept.info.weights_size_bytes)
            if not is_asleep:
                kept.sleep()
        self.model = None
        try:
            self.load(request, report)
            if kept is not None:
                _check_same(kept, self.loaded)
        except BaseException as error:
            traceback.clear_frames(error.__traceback__)  # they would keep the new weights in memory
            self.model, self.request, self._samples = None, before, samples
            self._give_back_memory()
            if kept is not None and not is_asleep:
                kept.wake_up()
            self.model = kept
            raise
        if kept is not None and before is not None:
            self._before = _Loaded(before, kept, samples, self._version)
        log.info("weights.replaced", path=request.weights.path if request.weights else request.model)

    @property
    def loaded(self) -> LoadedModel:
        """The model, which must be loaded."""
        assert self.model is not None
        return self.model

    def fingerprint(self, layout: Iterable[object]) -> bytes:
        """Return the fingerprint of the model, which must be loaded; see checkpoint/fingerprint.py."""
        assert self.request is not None, "a model is loaded"
        return fingerprint(self.request, self._samples, layout)

    def finish(self) -> None:
        """End an update: drop the weights before it."""
        if self._before is not None:
            self._before = None
            self._give_back_memory()

    def drop(self) -> None:
        """Drop the model."""
        self.model, self.request, self._samples, self.load_s = None, None, b"", 0.0
        self._version, self._before = "", None

    def check(self, request: LoadRequest, path: str) -> str:
        """Check the files of an update against those of a model; return their digest. Safe on any thread.

        Raises:
            NotFound: there are no such files.
            ModelError: they do not fit the model.
            Unsupported: the weights of this model cannot be replaced.
        """
        model = cast(object, self.model)
        if isinstance(model, SharesExperts) and model.is_shared:
            raise Unsupported("Weights cannot be updated while several engines share the experts of a model.")
        from tetrad.worker_svc.checkpoint.replacement import check_replacement  # the simulated device starts without torch

        return check_replacement(request, find_replacement(path))

    def _read(self, request: LoadRequest, report: Progress) -> LoadedModel:
        if request.weights is None:
            return self._device.load_model(request, report)
        from tetrad.worker_svc.checkpoint.replacement import check_unchanged, laid_out  # see `check`

        path = find_replacement(request.weights.path)
        check_unchanged(path, request.weights.files_digest)
        with laid_out(request, path) as files:
            model = self._device.load_model(replace(request, path=files, weights=None, random_weights=False), report)
        check_unchanged(path, request.weights.files_digest)
        return model

    def _restore(self, before: _Loaded) -> None:
        self.model = None
        self._give_back_memory()
        before.model.wake_up()
        self.model, self.request, self._samples = before.model, before.request, before.samples
        self._version, self._before = before.version, None
        log.info("weights.restored", model=before.request.model)


def _check_room(size_bytes: int) -> None:
    """Raise FailedPrecondition if two sets of weights do not fit into host memory, where those before wait meanwhile."""
    if size_bytes > available_memory_bytes():
        raise not_available("An update, which keeps the weights before it until its end,", size_bytes, "Give the worker more.")


def _check_same(before: LoadedModel, after: LoadedModel) -> None:
    """Raise ModelError if a model with other weights is another model for the engine core."""
    for field in fields(ModelInfo):
        values = [getattr(model.info, field.name) for model in (before, after)]
        if field.name not in _MAY_DIFFER and values[0] != values[1]:
            raise ModelError(
                f"The weights are of another model: {field.name} is {values[1]}, that of the served one {values[0]}."
            )
    if before.kv_groups(_ANY_BLOCK_SIZE) != after.kv_groups(_ANY_BLOCK_SIZE):
        raise ModelError("The weights are of another model: its KV cache has another shape or type.")
