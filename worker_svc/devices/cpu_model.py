"""CPU model: the LoadedModel of a model in host memory."""

from tetrad.worker_svc.core.device import KvGroup, KvLayout, ModelInfo
from tetrad.worker_svc.core.layout_check import check_host_cache
from tetrad.worker_svc.core.media import ModelMedia
from tetrad.worker_svc.core.result import Runner
from tetrad.worker_svc.devices.cpu_models import HostModel


class CpuModel:
    """A LoadedModel in host memory.

    Args:
        model: the model with its program.
        info: the model's facts.
        media: the tower and its encoder cache; None: the model takes only text.
    """

    def __init__(self, model: HostModel, info: ModelInfo, media: ModelMedia | None = None) -> None:
        self._model = self.host = model
        self.media = media
        self.info, self.loras, self.expert_tokens = info, model.loras, model.expert_tokens

    def kv_groups(self, block_size: int) -> tuple[KvGroup, ...]:
        """Return the groups of the KV cache."""
        return self._model.kv_cache_spec.kv_groups(block_size)

    def make_runner(self, layout: KvLayout) -> Runner:
        """Allocate the KV cache and return the runner; raise FailedPrecondition if memory is too small for the cache."""
        check_host_cache(layout, self._model.kv_cache_spec.block_size_bytes(layout.block_size))
        options = {} if self.media is None else {"media": self.media}
        return self._model.make_runner(layout, **options)

    @property
    def is_shared(self) -> bool:
        """See SharesExperts."""
        return self._model.shared is not None

    def meet(self) -> None:
        """See SharesExperts."""
        if self._model.shared is not None:
            self._model.shared.meet()

    def sleep(self) -> None:
        """Do nothing: the weights are already in host memory."""

    def wake_up(self) -> None:
        """Do nothing: the weights have not moved."""
