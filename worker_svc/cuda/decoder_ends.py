"""Decoder ends: the embeddings before the kernel decoder's layers, and the norm and output layer after them.

The first stage of a pipeline has the embeddings, the last one has norm and output layer, and a stage between has neither.
"""

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name

from tetrad.worker_svc.cuda.interface import DeviceParameters
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.models.decoder import GivenEmbeddings


class DecoderEnds:
    """The input embeddings, the last norm and the output layer.

    Args:
        config: the model's description.
        linears: loads the weights to the device.

    Attributes:
        norm: the weight [hidden] of the last norm; None: it is on another stage.
    """

    def __init__(self, config: ModelConfig, linears: DeviceParameters) -> None:
        size = config.vocab_size, config.hidden_size
        is_tied = config.tie_word_embeddings or not linears.has("lm_head.weight")
        has_table = config.has_embeddings or (config.has_output and is_tied)
        self._table = table = linears.embedding("model.embed_tokens.weight", *size) if has_table else None
        self.norm = self._head = self._lookup = None
        if config.has_embeddings and table is not None:
            self._lookup = linears.lookup("model.embed_tokens", table)
        if config.has_output:
            self.norm = linears.vector("model.norm.weight", config.hidden_size)
            self._head = linears.output("lm_head", table if is_tied else None, *size)

    def enter(self, tokens: torch.Tensor, given: GivenEmbeddings | None) -> torch.Tensor:
        """Return the residual stream [T, hidden] before the first layer: embeddings of ids [T], or the stream of a stage.

        The caller may change it.
        """
        if self._lookup is None:
            return tokens
        residual = self._lookup(tokens)
        if given is not None:
            residual.index_copy_(0, given.rows, given.values.to(residual.dtype))
        return residual

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return the embeddings [T, hidden] of ids [T], without adapters; the caller may change them."""
        assert self._table is not None, "the embeddings are on another stage"
        return F.embedding(token_ids, self._table)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits [N, vocab_size] float32 of normed hidden states [N, hidden]."""
        assert self._head is not None, "the output layer is on another stage"
        return self._head(hidden)
