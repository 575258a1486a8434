"""Bidirectional decoder: runs a decoder's layers over packed prompts with bidirectional attention, in torch.

Called by the encoder runner, on the compute thread.
"""

import torch

from tetrad.services.errors import ModelError
from tetrad.worker_svc.attention.packed import Bounds, PackedAttention
from tetrad.worker_svc.kv_cache.layer_groups import group_layers
from tetrad.worker_svc.layers.experts import HostMixes, MixOf
from tetrad.worker_svc.layers.parameters import Parameters
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.models.decoder import Decoder
from tetrad.worker_svc.models.packed_prompts import PackedPrompts, Upload

_HOST = torch.device("cpu")
_NO_CACHE = torch.empty(0)


class BidirectionalDecoder:
    """A decoder without a KV cache, and so without states, which it refuses with a ModelError; see PackedEncoder.

    Args:
        config: the model's description.
        parameters: the model's weights.
        device: device of all tensors.
        upload: copies a step's inputs to the device.
        mix_of: creates the Mix of a layer's experts; None: the Mix of the host.
    """

    def __init__(
        self,
        config: ModelConfig,
        parameters: Parameters,
        device: torch.device = _HOST,
        upload: Upload = torch.from_numpy,
        mix_of: MixOf | None = None,
    ) -> None:
        if config.state_size:
            raise ModelError("A model with states cannot see in both directions.")
        attention = PackedAttention(num_heads=config.num_heads, num_kv_heads=config.num_kv_heads, head_dim=config.head_dim)
        self._decoder: Decoder[Bounds] = Decoder(config, parameters, attention, mix_of or HostMixes(), device)
        self._num_layers, self._num_groups = config.num_layers, len(group_layers(config.layer_windows))
        self.vocab_size, self._upload = config.vocab_size, upload

    def forward(self, prompts: PackedPrompts) -> torch.Tensor:
        """Return the hidden states [T, hidden_size] after the last norm."""
        starts = prompts.starts
        bounds = list(zip(starts.tolist(), (starts + prompts.lengths).tolist(), strict=True))
        token_ids, positions = self._upload(prompts.token_ids), self._upload(prompts.positions)
        hidden = self._decoder.forward(token_ids, positions, [_NO_CACHE] * self._num_layers, [bounds] * self._num_groups)
        return self._decoder.normed(hidden)
