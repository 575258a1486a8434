"""Sampling parameters by slot, in device memory for the kernels; the parameters of new requests are uploaded in one copy."""

import numpy as np
import torch

from tetrad.worker_svc.core.plan import Ints, NewRequest
from tetrad.worker_svc.cuda.device.accelerator import Accelerator
from tetrad.worker_svc.sampler.sampler import LEAST_TEMPERATURE

_NUM_FLOATS = 3


class SamplingParameters:
    """The sampling parameters of S slots; a SlotListener.

    Args:
        accelerator: the device with the parameters.
        num_slots: S.
    """

    def __init__(self, accelerator: Accelerator, num_slots: int) -> None:
        self._accelerator = accelerator
        self._changed: set[int] = set()
        # One table of 64-bit values, so that one copy changes all of them.
        self._host: Ints = np.zeros((6, num_slots), np.int64)
        self._device = torch.zeros(self._host.shape, dtype=torch.int64, device=accelerator.device)
        self.temperature, self.top_p, self.min_p = self._device[:_NUM_FLOATS].view(torch.float64)
        """Each [S] float64; temperature 0 means greedy."""
        self.top_k, self.seeds, self.num_prompt_tokens = self._device[_NUM_FLOATS:]
        """Each [S] int64."""
        self.is_greedy = np.ones(num_slots, np.bool_)
        self.is_cut = np.zeros(num_slots, np.bool_)
        """Whether top_k, top_p or min_p leave anything out."""

    def add(self, slot: int, request: NewRequest) -> None:
        """Store a request's parameters on the host; `catch_up` copies them to the device."""
        sampling = request.sampling
        is_greedy = sampling.is_greedy
        temperature = 0.0 if is_greedy else max(sampling.temperature, LEAST_TEMPERATURE)
        top_p, min_p, top_k = (1.0, 0.0, 0) if is_greedy else (sampling.top_p, sampling.min_p, sampling.top_k)
        self._host[:_NUM_FLOATS].view(np.float64)[:, slot] = temperature, top_p, min_p
        self._host[_NUM_FLOATS:, slot] = top_k, sampling.seed, request.num_prompt_tokens
        self.is_greedy[slot] = is_greedy
        self.is_cut[slot] = top_k > 0 or top_p < 1 or min_p > 0
        self._changed.add(slot)

    def remove(self, slot: int) -> None:
        """Do nothing: the next request overwrites the slot's values."""

    def catch_up(self) -> None:
        """Copy changed parameters to the device."""
        if self._changed:
            slots = np.array(sorted(self._changed))
            changes = self._accelerator.upload(np.concatenate([slots[None], self._host[:, slots]]))
            self._device.index_copy_(1, changes[0], changes[1:])
            self._changed.clear()
