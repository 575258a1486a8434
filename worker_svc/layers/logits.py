"""Logits: what some families do to the output of their last product."""

import torch

from tetrad.worker_svc.model_facts.config import ModelConfig


def scaled_and_capped(logits: torch.Tensor, config: ModelConfig) -> torch.Tensor:
    """Return logits [N, V] float32, times the model's multiplier and within its cap; changed in place."""
    if config.logit_multiplier != 1:
        logits.mul_(config.logit_multiplier)
    cap = config.logit_softcap
    return logits.div_(cap).tanh_().mul_(cap) if cap else logits
