"""Logits processors for tests, named as "tests.worker_svc.sampler.custom_processors:Class"."""

import torch

from tetrad.logits_processors import AdapterLogitsProcessor

MODULE = "tests.worker_svc.sampler.custom_processors"
NO_CLASS = 3


class Target(AdapterLogitsProcessor):
    """Leaves one token: extra_args["target"] plus the number of output tokens."""

    @classmethod
    def validate_params(cls, params):
        target = (params.extra_args or {}).get("target")
        if target is not None and not isinstance(target, int):
            raise ValueError(f"target must be an int, got {target!r}")

    def new_req_logits_processor(self, params):
        target = (params.extra_args or {}).get("target")
        if target is None:
            return None

        def leave(output_token_ids, logits):
            token = target + len(output_token_ids)
            kept = logits[token].item()
            logits.fill_(float("-inf"))
            logits[token] = kept
            return logits

        return leave


class Hash(AdapterLogitsProcessor):
    """Raises some logits, which follow from all tokens of prompt and output; returns a new tensor."""

    def __init__(self, vllm_config, device, is_pin_memory):
        self.vocab_size, self.device = vllm_config.model_config.get_vocab_size(), device

    def new_req_logits_processor(self, params):
        strength = (params.extra_args or {}).get("hash")
        return None if strength is None else lambda prompt, output, logits: self.raised(strength, prompt, output, logits)

    def raised(self, strength, prompt, output, logits):
        seen = sum(prompt) + 7 * len(prompt) + sum((place + 1) * token for place, token in enumerate(output))
        raised = torch.arange(self.vocab_size, device=self.device).mul(31).add(seen).remainder(11).eq(0)
        return logits + strength * raised


class Wrong(AdapterLogitsProcessor):
    """Does what extra_args["wrong"] says, once the output has extra_args["later"] tokens."""

    def new_req_logits_processor(self, params):
        asked = params.extra_args or {}
        wrong = asked.get("wrong")
        if wrong == "new request":
            raise RuntimeError("on purpose")
        if wrong == "parameters":
            return lambda logits: logits
        if wrong == "no parameters":
            return max
        results = {
            "shape": lambda logits: logits[:3],
            "type": lambda logits: logits.double(),
            "list": lambda logits: logits.tolist(),
            "None": lambda _: None,
            "sparse": lambda logits: logits.to_sparse(),
            "NaN": lambda logits: logits.fill_(float("nan")),
            "infinity": lambda logits: logits.index_fill(0, torch.tensor([1], device=logits.device), float("inf")),
            "nothing left": lambda logits: logits.fill_(float("-inf")),
            "raises": lambda _: {}["missing"],
        }
        if wrong is None:
            return None
        least = asked.get("later", 0)
        return lambda output, logits: results[wrong](logits) if len(output) >= least else logits


class Last(Target):
    """Says that it belongs after the temperature."""

    def is_argmax_invariant(self):
        return True


class Unmakeable(Target):
    """Cannot be made."""

    def __init__(self, *_):
        raise KeyError("no such file")


class Half:
    """Lacks a method."""

    def is_argmax_invariant(self):
        return False
