"""Drafted model: a model on the CPU with a second one beside it that proposes its next tokens. A LoadedModel.

Both have keys and values of their own under the same block ids, so a block takes the memory of both.
"""

from dataclasses import replace

from tetrad.services.errors import FailedPrecondition, ModelError
from tetrad.worker_svc.core.device import CountsExperts, KvGroup, KvLayout, LoadedModel
from tetrad.worker_svc.core.layout_check import check_host_cache
from tetrad.worker_svc.core.plan import Runner
from tetrad.worker_svc.devices.cpu_models import HostModel
from tetrad.worker_svc.kv_cache.cache import KvCache
from tetrad.worker_svc.runner.drafting_runner import DraftingRunner
from tetrad.worker_svc.runner.model_runner import ModelRunner


class DraftedModel:
    """See LoadedModel.

    Args:
        target: samples.
        drafter: proposes.
        host: the drafter's program.

    Raises:
        ModelError: they cannot work together.
    """

    def __init__(self, target: LoadedModel, drafter: LoadedModel, host: HostModel) -> None:
        _check(target, drafter, host)
        self._target, self._drafter, self._host = target, drafter, host
        size_bytes = target.info.weights_size_bytes + drafter.info.weights_size_bytes
        self.info, self.loras = replace(target.info, weights_size_bytes=size_bytes), target.loras
        self.expert_tokens = target.expert_tokens if isinstance(target, CountsExperts) else ()

    def kv_groups(self, block_size: int) -> tuple[KvGroup, ...]:
        """Return the target's group; a block has the bytes of both."""
        [group], [drafts] = self._target.kv_groups(block_size), self._drafter.kv_groups(block_size)
        return (replace(group, block_size_bytes=group.block_size_bytes + drafts.block_size_bytes),)

    def make_runner(self, layout: KvLayout) -> Runner:
        """Allocate both KV caches; FailedPrecondition if there is no memory, or sequences are too long for the drafter."""
        longest = self._drafter.info.max_position_embeddings
        if layout.max_model_len > longest:
            raise FailedPrecondition(
                f"max_model_len {layout.max_model_len} exceeds the {longest} positions of the draft model; lower it."
            )
        check_host_cache(layout, self.kv_groups(layout.block_size)[0].block_size_bytes)
        runner, decoder = self._target.make_runner(layout), self._host.decoder
        assert isinstance(runner, ModelRunner)
        assert decoder is not None
        cache = KvCache(
            decoder.kv_cache_spec,
            num_blocks=layout.num_blocks,
            block_size=layout.block_size,
            num_host_blocks=layout.num_host_blocks,
        )
        return DraftingRunner(runner, decoder, cache)

    def sleep(self) -> None:
        """Do nothing: host memory is where the weights are."""

    def wake_up(self) -> None:
        """Do nothing."""


def _check(target: LoadedModel, drafter: LoadedModel, host: HostModel) -> None:
    if host.decoder is None or target.info.pooling is not None:
        raise ModelError("speculative_config.model: both models must be decoders that generate.")
    sizes = target.info.vocab_size, drafter.info.vocab_size
    if sizes[0] != sizes[1]:
        raise ModelError(
            f"Target and draft model should have the same vocabulary size. The target has {sizes[0]} tokens, the draft model "
            f"{sizes[1]}."
        )
    for name, model in (("target", target), ("draft model", drafter)):
        groups = model.kv_groups(16)
        if len(groups) != 1 or groups[0].sliding_window is not None or groups[0].is_state:
            raise ModelError(
                f"speculative_config.model: all layers of the {name} must see all tokens; some have windows or states."
            )
