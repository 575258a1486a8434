"""CPU model: the LoadedModel of a model in host memory."""

from tetrad.worker_svc.core.device import KvGroup, KvLayout, ModelInfo
from tetrad.worker_svc.core.layout_check import check_host_cache
from tetrad.worker_svc.core.plan import Runner
from tetrad.worker_svc.devices.cpu_models import HostModel


class CpuModel:
    """A LoadedModel in host memory."""

    def __init__(self, model: HostModel, info: ModelInfo) -> None:
        self._model = self.host = model
        self.info, self.loras, self.expert_tokens = info, model.loras, model.expert_tokens

    def kv_groups(self, block_size: int) -> tuple[KvGroup, ...]:
        """Return the groups of the KV cache."""
        return self._model.kv_cache_spec.kv_groups(block_size)

    def make_runner(self, layout: KvLayout) -> Runner:
        """Allocate the KV cache and return the runner; raise FailedPrecondition if memory is too small for the cache."""
        check_host_cache(layout, self._model.kv_cache_spec.block_size_bytes(layout.block_size))
        return self._model.make_runner(layout)

    def meet(self) -> None:
        """See SharesExperts."""
        if self._model.shared is not None:
            self._model.shared.meet()

    def sleep(self) -> None:
        """Do nothing: the weights are already in host memory."""

    def wake_up(self) -> None:
        """Do nothing: the weights have not moved."""
