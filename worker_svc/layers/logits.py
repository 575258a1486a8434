"""Logits: applies the multiplier and the cap of some families to logits."""

import torch

from tetrad.worker_svc.model_facts.config import ModelConfig


def scaled_and_capped(logits: torch.Tensor, config: ModelConfig) -> torch.Tensor:
    """Apply the model's multiplier and cap to logits [N, V] float32, in place, and return them."""
    if config.logit_multiplier != 1:
        logits.mul_(config.logit_multiplier)
    cap = config.logit_softcap
    return logits.div_(cap).tanh_().mul_(cap) if cap else logits
