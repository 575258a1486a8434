"""Foreign sampling parameters: accepts or refuses each of vLLM's parameters that Tetrad does not have. Base of SamplingParams.

They are arguments, not fields: a request does not carry them.
"""

from dataclasses import InitVar, dataclass, field
from typing import Any

from tetrad.services.verdicts import Verdict, ignored, refused

_EXPERTS = "Outputs do not have experts."
_CODE = "Of vLLM before V1: name classes in the engine's `logits_processors`, and give requests their `extra_args`."
_BEAMS = "`beam_search` of LLM and AsyncLLM searches."

SAMPLING_VERDICTS: dict[str, Verdict] = {
    "watermarking": refused(None, "Watermarks are not supported.", False),
    "skip_clone": ignored(False, "Parameters are copied where they are changed."),
    "output_text_buffer_length": ignored(0, "The frontend finds out how much text a stop string holds back."),
    "routed_experts_prompt_start": refused(0, _EXPERTS),
    "trace_decode_token_ids": refused(None, "Answers are generated, not replayed."),
    "best_of": refused(None, "Of vLLM before 0.9: use `n`.", 1),
    "use_beam_search": refused(False, _BEAMS),
    "early_stopping": refused(False, _BEAMS),
    "length_penalty": refused(1.0, _BEAMS),
    "logits_processors": refused(None, _CODE),
}


@dataclass
class ForeignSamplingParams:
    """The arguments of vLLM's SamplingParams that Tetrad does not have."""

    watermarking: InitVar[Any] = field(default=None, kw_only=True)
    skip_clone: InitVar[Any] = field(default=False, kw_only=True)
    output_text_buffer_length: InitVar[Any] = field(default=0, kw_only=True)
    routed_experts_prompt_start: InitVar[Any] = field(default=0, kw_only=True)
    trace_decode_token_ids: InitVar[Any] = field(default=None, kw_only=True)
    best_of: InitVar[Any] = field(default=None, kw_only=True)
    use_beam_search: InitVar[Any] = field(default=False, kw_only=True)
    early_stopping: InitVar[Any] = field(default=False, kw_only=True)
    length_penalty: InitVar[Any] = field(default=1.0, kw_only=True)
    logits_processors: InitVar[Any] = field(default=None, kw_only=True)
    guided_decoding: InitVar[Any] = field(default=None, kw_only=True)


def check_foreign(values: tuple[Any, ...]) -> None:
    """Raise UnsupportedArgument for the first unsupported value; `values` are in the order of SAMPLING_VERDICTS."""
    for (name, verdict), value in zip(SAMPLING_VERDICTS.items(), values, strict=True):
        if value is not verdict.default:
            verdict.check(name, value)
