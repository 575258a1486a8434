"""Registry: architecture name, as Hugging Face configs give it, -> the model that runs it."""

from typing import Any, Protocol

import torch

from tetrad.worker_svc.checkpoint.loader import WeightLoader
from tetrad.worker_svc.core.plan import Floats, Ints
from tetrad.worker_svc.kv_cache.cache import KvCacheSpec
from tetrad.worker_svc.layers.linear import LinearFactory
from tetrad.worker_svc.model_facts.check import ARCHITECTURES
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.models.llama import LlamaModel


class Model(Protocol):
    """A loaded decoder; stateless between steps, run by the compute thread."""

    config: ModelConfig
    kv_cache_spec: KvCacheSpec
    attention: Any

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, caches: list[torch.Tensor], metadata: Any
    ) -> torch.Tensor:
        """Return the last layer's hidden states [T, hidden] of tokens [T]; writes the caches."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return [N, vocab_size] float32 for hidden states [N, hidden]."""

    def argmax(self, hidden: torch.Tensor) -> tuple[Ints, Floats]:
        """Return the id [N] of each row's largest logit, and that [N]: the lowest of equals; if there is a NaN, the first."""


_MODELS = dict.fromkeys(ARCHITECTURES, LlamaModel)


def load_model(config: ModelConfig, weights: WeightLoader, make_linear: LinearFactory) -> Model:
    """Return the model with its weights."""
    return _MODELS[config.architecture](config, weights, make_linear)
