"""Draft head on a device: its attention, and the fixed place of the target's states, which graphs write too."""

from collections.abc import Callable

import torch

from tetrad.worker_svc.cuda.attention import DeviceStep
from tetrad.worker_svc.cuda.torch_attention import TorchAttention
from tetrad.worker_svc.kv_cache.cache import KvCacheSpec
from tetrad.worker_svc.kv_cache.layer_groups import groups_of
from tetrad.worker_svc.models.draft_head import DraftHead


class DeviceHead:
    """A draft head with its attention; see PagedModel.

    Args:
        head: the head, run by torch.
        attention: the attention of its layer.
        dtype: type of hidden states.
        kv_cache_dtype: type of keys and values.
        states_of: returns the head's input states [T, state_size] for the target's last hidden states [T, hidden].
    """

    def __init__(
        self,
        head: DraftHead[DeviceStep],
        attention: TorchAttention,
        dtype: torch.dtype,
        kv_cache_dtype: torch.dtype,
        states_of: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        config = head.config
        self.head, self.config, self.dtype, self.states_of = head, config, dtype, states_of
        self.kv_cache_spec = KvCacheSpec(groups_of(config), config.num_kv_heads, config.head_dim, kv_cache_dtype)
        self.has_kernel_attention, self.host_steps = attention.has_kernels, attention.host_steps()


class StepStates:
    """The target's states of the tokens of a step, which the next step overwrites.

    A recorded step writes the same place as any other step, so the target's decode steps stay graphs.

    Args:
        head: reads the states.
        num_tokens: maximum number of tokens of a step, padding included.
        device: device of the states.
    """

    def __init__(self, head: DeviceHead, num_tokens: int, device: torch.device) -> None:
        self._states_of = head.states_of
        self._kept = torch.zeros(num_tokens, head.head.state_size, dtype=head.dtype, device=device)

    def see(self, hidden: torch.Tensor) -> None:
        """Keep the states of a pass with these last hidden states [T, hidden]."""
        self._kept[: len(hidden)].copy_(self._states_of(hidden))

    def first(self, num_tokens: int) -> torch.Tensor:
        """Return the states of the first tokens of the last step; the caller must not change them."""
        return self._kept[:num_tokens]
