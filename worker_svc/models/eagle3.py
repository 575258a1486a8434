"""EAGLE-3 head in torch, on any device: one decoder layer that reads a token's embedding and the hidden state before the token.

Loaded by devices/draft_heads.py. One product fuses the target's hidden states of several layers; when the head drafts further
tokens, its own residual stream replaces them.
"""

from typing import Generic

import torch

from tetrad.worker_svc.attention.interface import ByGroup, M
from tetrad.worker_svc.core.plan import Ints
from tetrad.worker_svc.families.eagle3 import Eagle3Config
from tetrad.worker_svc.layers.argmax import argmax
from tetrad.worker_svc.layers.norm import RmsNorm
from tetrad.worker_svc.layers.parameters import Lookup
from tetrad.worker_svc.layers.rotary import rotary_of
from tetrad.worker_svc.layers.step import Step
from tetrad.worker_svc.models.attention import AttentionReader
from tetrad.worker_svc.models.draft_head import HeadParts
from tetrad.worker_svc.models.layer_stack import NO_STATES
from tetrad.worker_svc.models.mlp import MlpReader

_LAYER = "model.layers.0"


class Eagle3Head(Generic[M]):
    """An EAGLE-3 head; see DraftHead.

    Args:
        facts: the head's description.
        parts: the device's parts; their share is the rank's part of the head.
        embed: returns the embeddings of token ids.
        state_size: number of values in the target's states of a token.
        draft_ids: [draft_vocab_size], the target's id of each token of the head; None: the ids are the same.
    """

    def __init__(
        self, facts: Eagle3Config, parts: HeadParts[M], embed: Lookup, state_size: int, draft_ids: torch.Tensor | None
    ) -> None:
        share, parameters = parts.share, parts.parameters
        config = share.part_of(facts.decoder)
        [layer], hidden = config.layers, config.hidden_size
        assert layer.rope is not None
        self.config, self.state_size, self.longest = config, state_size, config.max_position_embeddings
        self._embed, self._draft_ids, self._vocab_size = embed, draft_ids, facts.decoder.vocab_size
        self._adds_to_normed = facts.adds_to_normed

        def norm(name: str) -> RmsNorm:
            return RmsNorm(parameters.vector(f"{name}.weight", hidden), config.norm_eps)

        self._fuse = parameters.linear([("fc", hidden)], state_size)
        self._token_norm, self._hidden_norm = norm(f"{_LAYER}.input_layernorm"), norm(f"{_LAYER}.hidden_norm")
        reader = AttentionReader(config, parameters, parts.attention, input_size=2 * hidden)
        self._attention = share.attention(reader.attention(f"{_LAYER}.self_attn", layer))
        self._mlp_norm = norm(f"{_LAYER}.post_attention_layernorm")
        self._mlp = share.mlp(MlpReader(config, parameters, parts.mix_of).mlp(f"{_LAYER}.mlp", layer))
        self._norm, num_drafts = norm("model.norm"), facts.draft_vocab_size
        self._output = share.output(parameters.output("lm_head", None, share.num_rows(num_drafts), hidden), num_drafts)
        self._rotary = rotary_of(layer.rope.dim, layer.rope.theta, layer.rope.scaling).to(parts.device)

    def begin(self, states: torch.Tensor) -> torch.Tensor:
        """Fuse the target's states of several layers; see DraftHead."""
        return self._fuse(states)

    def forward(
        self,
        hidden: torch.Tensor,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        caches: list[torch.Tensor],
        metadata: ByGroup[M],
    ) -> torch.Tensor:
        """Return the residual stream [T, hidden] after the layer; see DraftHead."""
        step = Step(positions, (self._rotary.turns(positions),), NO_STATES)
        normed = self._hidden_norm(hidden)
        both = torch.cat([self._token_norm(self._embed(token_ids)), normed], 1)
        stream = (normed if self._adds_to_normed else hidden) + self._attention(both, caches[0], step, metadata[0])
        return stream.add_(self._mlp(self._mlp_norm(stream)))

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See DraftHead."""
        drafts = self._output(self._norm(hidden)).float()
        if self._draft_ids is None:
            return drafts
        logits = drafts.new_full((len(drafts), self._vocab_size), float("-inf"))
        return logits.index_copy_(1, self._draft_ids, drafts)

    def argmax(self, hidden: torch.Tensor) -> Ints:
        """See DraftHead."""
        ids, _ = argmax(self._output(self._norm(hidden)).float())
        return ids if self._draft_ids is None else self._draft_ids.numpy()[ids]
