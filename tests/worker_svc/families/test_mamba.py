"""Log-probabilities of Mamba, Falcon Mamba and Jamba are transformers', in one step and in chunks."""

import numpy as np
import pytest
import torch

from tests.worker_svc.conftest import Driver
from tests.worker_svc.families.test_parity import LAYOUT, PROMPTS
from tests.worker_svc.families.tiny_models import save_family
from tetrad.worker_svc.core.plan import SamplingSpec


@pytest.mark.parametrize("name", ["mamba", "mamba with biases", "falcon_mamba", "jamba", "jamba without experts"])
def test_log_probabilities_of_a_prompt_are_those_of_transformers(name, tmp_path, load):
    reference, prompt = save_family(tmp_path, name), PROMPTS[-2]
    model = load(tmp_path)
    with torch.inference_mode():
        logits = reference(torch.tensor([prompt])).logits[0, :-1].log_softmax(-1)
    expected = logits.gather(1, torch.tensor(prompt[1:])[:, None])[:, 0].numpy()

    for chunk in (len(prompt), 7):
        driver = Driver(model.make_runner(LAYOUT), LAYOUT)
        driver.add(0, prompt, SamplingSpec(temperature=0.0, num_prompt_logprobs=0))
        driver.generate(1, chunk=chunk)
        found = np.concatenate([values[:, 0] for _, _, values in driver.requests[0].prompt_logprobs])

        np.testing.assert_allclose(found, expected, atol=1e-4)
