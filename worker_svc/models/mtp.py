"""MTP head in torch, on any device: the layer after a model's last one that predicts further tokens.

DeepSeek V3, GLM-4.5, Qwen3-Next and Qwen3.5 have one; devices/draft_heads.py loads it. One product joins a token's embedding
and the hidden state before the token, both normed; a layer like the model's own follows. When the head drafts further tokens,
its own hidden state replaces the model's.
"""

from typing import Generic

import torch

from tetrad.worker_svc.attention.interface import ByGroup, M
from tetrad.worker_svc.core.plan import Ints
from tetrad.worker_svc.layers.argmax import argmax
from tetrad.worker_svc.layers.logits import scaled_and_capped
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.models.draft_head import HeadParts
from tetrad.worker_svc.models.layer_stack import LayerStack
from tetrad.worker_svc.models.layers import LayerReader

LAYER = "model.layers.0"
"""Name of the layer in the parameters."""


class MtpHead(Generic[M]):
    """An MTP head; see DraftHead.

    Args:
        config: the model's description, with only this layer.
        parts: the device's parts; the weights are the layer's, and those of the model's vocabulary. Their share is the rank's
            part of all these.
    """

    def __init__(self, config: ModelConfig, parts: HeadParts[M]) -> None:
        hidden, vocab_size, parameters, share = config.hidden_size, config.vocab_size, parts.parameters, parts.share
        config = share.part_of(config)
        self._mtp = config.mtp
        self.config, self.state_size, self.longest = config, hidden, config.max_position_embeddings
        read = LayerReader(config, parameters, parts.attention, parts.mix_of, share.ranks)
        own = f"{LAYER}.embed_tokens.weight"
        table = parameters.embedding(own if parameters.has(own) else "model.embed_tokens.weight", config.vocab_size, hidden)
        self._embed = share.lookup(parameters.lookup("model.embed_tokens", table), vocab_size)
        self._token_norm, self._hidden_norm = read.norm(f"{LAYER}.enorm"), read.norm(f"{LAYER}.hnorm")
        self._join = parameters.linear([(f"{LAYER}.eh_proj", hidden)], 2 * hidden)
        self._stack = LayerStack(config, read, parts.device)
        self._norm = read.norm(f"{LAYER}.shared_head.norm")
        heads = [name for name in (f"{LAYER}.shared_head.head", "lm_head") if parameters.has(f"{name}.weight")]
        output = parameters.output(heads[0] if heads else "lm_head", None if heads else table, config.vocab_size, hidden)
        self._output = share.output(output, vocab_size)

    def begin(self, states: torch.Tensor) -> torch.Tensor:
        """Return the model's normed hidden states unchanged; see DraftHead."""
        return states

    def forward(
        self,
        hidden: torch.Tensor,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        caches: list[torch.Tensor],
        metadata: ByGroup[M],
    ) -> torch.Tensor:
        """Return the residual stream [T, hidden] after the layer, or the normed one; see DraftHead."""
        embeddings = self._embed(token_ids)
        if self._mtp.hides_first:
            embeddings.masked_fill_((positions == 0)[:, None], 0)
        stream = self._join(torch.cat([self._token_norm(embeddings), self._hidden_norm(hidden)], 1))
        self._stack.add_to(stream, positions, caches, metadata)
        return self._norm(stream) if self._mtp.continues_normed else stream

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See DraftHead."""
        normed = hidden if self._mtp.continues_normed else self._norm(hidden)
        return scaled_and_capped(self._output(normed).float(), self.config)

    def argmax(self, hidden: torch.Tensor) -> Ints:
        """See DraftHead."""
        ids, _ = argmax(self.logits(hidden))
        return ids
