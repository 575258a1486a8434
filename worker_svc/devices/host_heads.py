"""Draft heads on the cpu device: torch runs them, with weights in float32."""

from collections.abc import Callable
from typing import Any

import torch

from tetrad.worker_svc.attention.paged_metadata import PagedMetadata
from tetrad.worker_svc.checkpoint.loader import WeightLoader
from tetrad.worker_svc.core.device import KvLayout
from tetrad.worker_svc.kv_cache.cache import KvCache
from tetrad.worker_svc.layers.experts import HostMixes
from tetrad.worker_svc.layers.linear import PackedLinear, PlainLinear, can_pack
from tetrad.worker_svc.layers.parameters import HostParameters
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.models.draft_head import DraftHead, HeadParts
from tetrad.worker_svc.models.host import HostSteps, host_attention, host_cache_spec
from tetrad.worker_svc.runner.head_drafts import HeadDrafts
from tetrad.worker_svc.runner.model_runner import ModelRunner

_FLOAT32_BYTES = 4


class HeadDrafter:
    """A Drafter with a draft head; see Drafter.

    Args:
        head: the draft head.
        steps: builds the metadata of the head's attention.
        weights: the head's tensors, all of them loaded.
        states_of: returns the head's input states for the target's last hidden states.
    """

    def __init__(
        self,
        head: DraftHead[PagedMetadata],
        steps: HostSteps,
        weights: WeightLoader,
        states_of: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        self._head, self._steps, self._states_of = head, steps, states_of
        self.weights_size_bytes = weights.num_parameters * _FLOAT32_BYTES
        self.kv_cache_spec = host_cache_spec(head.config)

    def check_layout(self, layout: KvLayout) -> None:
        """Do nothing: a head makes no proposals beyond its largest position."""

    def drafts(self, runner: ModelRunner[Any], cache: KvCache) -> HeadDrafts:
        """See Drafter."""
        return HeadDrafts(runner, self._head, self._steps, cache, self._states_of)


def host_parts(config: ModelConfig, weights: WeightLoader) -> tuple[HeadParts[PagedMetadata], HostSteps]:
    """Return the host's parts of a head, and the builder of its metadata."""
    attention, steps = host_attention(config)
    parameters = HostParameters(weights, PackedLinear if can_pack() else PlainLinear)
    return HeadParts(parameters, attention, HostMixes(), torch.device("cpu")), steps
