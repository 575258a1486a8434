"""A sampler over requests given by their parameters and tokens, for tests."""

import numpy as np
import torch

from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.plan import NewRequest, SamplingSpec
from tetrad.worker_svc.core.sampler_options import LogprobsMode
from tetrad.worker_svc.sampler.sampler import Sampler

V = 50


class Bench:
    """A sampler over requests that are given by their parameters and tokens."""

    def __init__(self, *rows, vocab_size=V, mode=LogprobsMode.RAW_LOGPROBS):
        self.batch = InputBatch(max_num_seqs=64, max_model_len=128, block_size=16)
        self.sampler = Sampler(self.batch, vocab_size, logprobs_mode=mode)
        self.vocab_size = vocab_size
        for handle, (sampling, prompt, output) in enumerate(rows):
            ids = np.array([*prompt, *output], np.int64)
            request = NewRequest(
                handle, str(handle), ids, len(prompt), 0, len(ids), np.zeros((1, 8), np.int64), sampling, eos_token_id=2
            )
            self.sampler.add(self.batch.add(request), request)
        self.slots = np.array(self.batch.slots_of(list(range(len(rows)))))

    def sample(self, logits, grammar=None):
        logits = torch.tensor(np.array(logits), dtype=torch.float32).reshape(len(self.slots), self.vocab_size).clone()
        return self.sampler.sample(logits, self.slots, grammar)


def greedy_of(sampling, logits, prompt=(1,), output=(), grammar=None):
    return int(Bench((sampling, prompt, output)).sample(logits, grammar).token_ids[0])


def peaks(**values):
    logits = np.zeros(V, np.float32)
    for name, value in values.items():
        logits[int(name[1:])] = value
    return logits


def spec(**fields):
    return SamplingSpec(temperature=0.0, **fields)
