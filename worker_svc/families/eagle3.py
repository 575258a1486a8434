"""EAGLE-3 heads: describes a head, one decoder layer that drafts for another model, from the values of its config.

Called by the devices, and before a head is downloaded. The head reads the hidden states before three of the target's layers,
and the embedding of the next token (Li et al. 2025). Its vocabulary may be a part of the target's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tetrad.services.errors import ModelError, one_line
from tetrad.worker_svc.families.decoder import decoder
from tetrad.worker_svc.families.limits import check_limits
from tetrad.worker_svc.families.values import Values, architecture_of
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.model_facts.quantization import method_of

_ARCHITECTURES = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")


@dataclass(frozen=True, slots=True)
class Eagle3Config:
    """The description of an EAGLE-3 head.

    Attributes:
        decoder: the head's one layer; the vocabulary is the target's.
        draft_vocab_size: number of tokens that the head can propose.
        layers: the target's layers whose input hidden states the head reads; empty: chosen by the target's number of layers.
        adds_to_normed: the residual stream begins with the normed hidden states.
    """

    decoder: ModelConfig
    draft_vocab_size: int
    layers: tuple[int, ...]
    adds_to_normed: bool

    def layers_of(self, num_layers: int) -> tuple[int, ...]:
        """Return the layers whose input the head reads, for a target with `num_layers`; raise ModelError if it has too few."""
        layers = self.layers or (2, num_layers // 2, num_layers - 3)
        if not all(0 <= layer < num_layers for layer in layers):
            raise ModelError(
                f"speculative_config.model: the EAGLE-3 head reads hidden states of layers {list(layers)}; the target has "
                f"layers 0 to {num_layers - 1}."
            )
        return layers


def eagle3_config(config: Mapping[str, Any]) -> Eagle3Config:
    """Return the description of a head's config.json; raise ModelError if it is not a supported EAGLE-3 head's."""
    architecture = architecture_of(config)
    if architecture not in _ARCHITECTURES:
        raise ModelError(
            f"speculative_config.model is of architecture {architecture[:80]}; an EAGLE-3 head is one of "
            f"{', '.join(_ARCHITECTURES)}."
        )
    if method := method_of(config.get("quantization_config")):
        raise ModelError(
            f"The EAGLE-3 head is quantized as {method!r}, which is not supported; use one with weights in floats."
        )
    values = Values(config)
    try:
        if values.num_layers() != 1:
            raise ModelError(f"An EAGLE-3 head of {values.num_layers()} layers is not supported; it has 1.")
        facts = decoder(values)
        head = Eagle3Config(
            decoder=facts,
            draft_vocab_size=int(values.get("draft_vocab_size", default=facts.vocab_size)),
            layers=tuple(int(layer) for layer in values.get("eagle_aux_hidden_state_layer_ids", default=())),
            adds_to_normed=bool(values.get("norm_before_residual", default=False)),
        )
    except KeyError as error:
        raise ModelError(f"The EAGLE-3 head's config has no {error.args[0]!r}.") from error
    except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise ModelError(f"The EAGLE-3 head's config cannot be read: {one_line(error)}.") from error
    values.check_all_read()
    check_limits(facts)
    if not 0 < head.draft_vocab_size <= facts.vocab_size:
        raise ModelError(
            f"The EAGLE-3 head's draft_vocab_size {head.draft_vocab_size} must be 1 to its vocab_size {facts.vocab_size}."
        )
    if facts.layers[0].window is not None:
        raise ModelError("An EAGLE-3 head with a sliding window is not supported.")
    return head
