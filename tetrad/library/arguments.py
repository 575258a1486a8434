"""Arguments: converts an argument of LLM's methods, one value or a list, to one value per prompt.

A wrong type raises a TypeError, a list of the wrong length an InvalidRequest (a ValueError). The content of prompts, messages
and parameters is checked where it is used.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from tetrad.frontend.llm.beam_search import BeamSearchParams
from tetrad.frontend.request.outputs import LoRARequest
from tetrad.frontend.request.pooling import PoolingParams
from tetrad.frontend.request.prompts import PromptType, TokensPrompt
from tetrad.frontend.request.sampling_params import SamplingParams
from tetrad.frontend.request.sampling_values import check_flag, check_integer
from tetrad.frontend.request.structured_outputs import StructuredOutputsParams
from tetrad.services.errors import InvalidRequest

T = TypeVar("T")

Conversation = Sequence[dict[str, Any]]

_GUIDED = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "guided_json_object": "json_object",
    "guided_whitespace_pattern": "whitespace_pattern",
}
"""Older names of constraints -> fields of StructuredOutputsParams."""
_GUIDED_ANYWAY = ("guided_decoding_backend",)
_TOKENIZATION = ("add_special_tokens", "truncate_prompt_tokens", "truncation_side")


def prompts_of(
    prompts: PromptType | Sequence[PromptType] | None, token_ids: Sequence[int] | Sequence[Sequence[int]] | None = None
) -> list[PromptType]:
    """Return a list of prompts; a list of integers is one prompt.

    Args:
        prompts: one prompt, or a list.
        token_ids: ids of one prompt, or of each, as in older versions of vLLM; `prompts` are then their texts.
    """
    if token_ids is not None:
        return _with_texts(_of_ids(token_ids), prompts)
    if prompts is None:
        raise InvalidRequest("Either prompts or prompt_token_ids must be provided.", field="prompts")
    if isinstance(prompts, str | dict):
        return [prompts]
    many: list[Any] = _listed("prompts", prompts, "a prompt (text, token ids, TextPrompt or TokensPrompt) or a list of them")
    if many and all(isinstance(part, int) for part in many):
        return [many]
    return many


def _of_ids(token_ids: Sequence[int] | Sequence[Sequence[int]]) -> list[list[int]]:
    every: list[Any] = _listed("prompt_token_ids", token_ids, "the ids of a prompt, or a list of such lists")
    if every and all(isinstance(each, int) for each in every):
        return [every]
    return [list(_listed(f"prompt_token_ids[{place}]", ids, "a list of token ids")) for place, ids in enumerate(every)]


def _with_texts(every: list[list[int]], texts: PromptType | Sequence[PromptType] | None) -> list[PromptType]:
    if texts is None:
        return [TokensPrompt(prompt_token_ids=ids) for ids in every]
    listed = [texts] if isinstance(texts, str | dict) else list(texts)
    if len(listed) != len(every):
        raise InvalidRequest("The lengths of prompts and prompt_token_ids must be the same.", field="prompt_token_ids")
    if not all(isinstance(text, str) for text in listed):
        raise TypeError("prompts must be texts where prompt_token_ids are given")
    return [TokensPrompt(prompt_token_ids=ids, prompt=str(text)) for ids, text in zip(every, listed, strict=True)]


def conversations_of(messages: Conversation | Sequence[Conversation]) -> list[Conversation]:
    """Return a list of conversations."""
    many: list[Any] = _listed("messages", messages, "a list of messages, or a list of such lists")
    if many and all(isinstance(each, Mapping) for each in many):
        return [many]
    for place, each in enumerate(many):
        wrong = type(each).__name__ if isinstance(each, str) or not isinstance(each, Sequence) else None
        if wrong is None:
            wrong = next((f"a list with {type(part).__name__}" for part in each if not isinstance(part, Mapping)), None)
        if wrong is not None:
            raise TypeError(f"messages[{place}] must be a message (a dict) or a list of messages, as all others, got {wrong}")
    return many


def sampling_params_of(params: SamplingParams | Sequence[SamplingParams], num_prompts: int) -> list[SamplingParams]:
    """Return one SamplingParams per prompt."""
    return _per_prompt("sampling_params", params, SamplingParams, num_prompts)


def pooling_params_of(params: PoolingParams | Sequence[PoolingParams] | None, num_prompts: int) -> list[PoolingParams]:
    """Return one PoolingParams per prompt; None: the defaults for all."""
    return _per_prompt("pooling_params", PoolingParams() if params is None else params, PoolingParams, num_prompts)


def checked_params(params: SamplingParams) -> SamplingParams:
    """Return a copy of parameters that is checked again: a program may have changed attributes after the construction."""
    if not isinstance(params, SamplingParams):
        raise TypeError(f"sampling_params must be SamplingParams, got {type(params).__name__}")
    return dataclasses.replace(params)


def checked_beam_params(params: BeamSearchParams) -> BeamSearchParams:
    """Return a copy of the parameters of a beam search that is checked again, as in `checked_params`."""
    if not isinstance(params, BeamSearchParams):
        raise TypeError(f"params must be BeamSearchParams, got {type(params).__name__}")
    return dataclasses.replace(params)


def guided_by(options: Mapping[str, Any] | None, params: Sequence[SamplingParams]) -> list[SamplingParams]:
    """Return parameters with the constraint of an older form of vLLM: {"guided_json": ...} and similar options."""
    if not options:
        return list(params)
    unknown = sorted(set(options) - set(_GUIDED) - set(_GUIDED_ANYWAY))
    if unknown:
        text = f"guided_options_request has unknown keys: {', '.join(unknown)}; it may have {', '.join(_GUIDED)}."
        raise InvalidRequest(text, field="guided_options_request")
    fields = {_GUIDED[name]: value for name, value in options.items() if name in _GUIDED and value is not None}
    if not fields:
        return list(params)
    if any(each.structured_outputs is not None for each in params):
        text = "guided_options_request cannot be used together with structured_outputs of sampling_params."
        raise InvalidRequest(text, field="guided_options_request")
    constraint = StructuredOutputsParams(**fields)
    return [dataclasses.replace(each, structured_outputs=constraint) for each in params]


def check_lora_request(request: object) -> None:
    """Raise TypeError if the value is not a LoRARequest."""
    if not isinstance(request, LoRARequest):
        raise TypeError(f"lora_request must be a LoRARequest, got {type(request).__name__}.")


def check_adapter(request: object) -> None:
    """Raise TypeError if the value is neither a LoRARequest nor None."""
    if request is not None:
        check_lora_request(request)


def lora_requests_of(requests: LoRARequest | Sequence[LoRARequest | None] | None, num_prompts: int) -> list[LoRARequest | None]:
    """Return one LoRARequest, or None, per prompt."""
    if requests is None:
        return [None] * num_prompts
    return _per_prompt("lora_request", requests, LoRARequest, num_prompts, optional=True)


def priorities_of(priority: int | Sequence[int] | None, num_prompts: int) -> list[int]:
    """Return one priority per prompt."""
    if priority is None or (isinstance(priority, int) and not isinstance(priority, bool)):
        return [priority or 0] * num_prompts
    numbers: list[Any] = _listed("priority", priority, "an integer or a list with one per prompt")
    _check_length("priority", len(numbers), num_prompts)
    for place, number in enumerate(numbers):
        if isinstance(number, bool) or not isinstance(number, int):
            raise TypeError(f"priority[{place}] must be an integer, got {type(number).__name__}")
    return numbers


def tokenization_of(kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the tokenization options for AsyncLLM.add_request; TypeError or InvalidRequest if one is wrong."""
    options = dict(kwargs or {})
    unknown = sorted(set(options) - set(_TOKENIZATION))
    if unknown:
        raise TypeError(f"tokenization_kwargs has unknown keys: {', '.join(unknown)}; it may have {', '.join(_TOKENIZATION)}")
    if options.get("truncate_prompt_tokens") is not None:
        check_integer("truncate_prompt_tokens", options["truncate_prompt_tokens"])
    if "add_special_tokens" in options:
        check_flag("add_special_tokens", options["add_special_tokens"])
    if options.get("truncation_side") not in (None, "left", "right"):
        text = f"truncation_side must be 'left' or 'right', got {options['truncation_side']!r}."
        raise InvalidRequest(text, field="truncation_side")
    return options


def tools_of(tools: Sequence[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Return tools in OpenAI's form as a list; None if there are none."""
    if tools is None:
        return None
    every: list[Any] = _listed("tools", tools, "a list of OpenAI's tools")
    for place, tool in enumerate(every):
        if not isinstance(tool, Mapping):
            raise TypeError(f"tools[{place}] must be a dict, got {type(tool).__name__}")
        if tool.get("type") != "function" or not isinstance(tool.get("function"), Mapping):
            text = f"tools[{place}] must be {{'type': 'function', 'function': {{...}}}}, got {tool!r}."
            raise InvalidRequest(text, field="tools")
    return every


def check_content_format(wanted: str) -> None:
    """Refuse an unknown form of message contents for templates."""
    if wanted not in ("auto", "string", "openai"):
        text = f"chat_template_content_format must be 'auto', 'string' or 'openai', got {wanted!r}."
        raise InvalidRequest(text, field="chat_template_content_format")


def _per_prompt(name: str, value: Any, kind: type[T], num_prompts: int, *, optional: bool = False) -> list[Any]:
    if isinstance(value, kind):
        return [value] * num_prompts
    every = _listed(name, value, f"a {kind.__name__} or a list with one per prompt")
    for place, each in enumerate(every):
        if not isinstance(each, kind) and not (optional and each is None):
            raise TypeError(f"{name}[{place}] must be a {kind.__name__}, got {type(each).__name__}")
    _check_length(name, len(every), num_prompts)
    return every


def _listed(name: str, value: object, expected: str) -> list[Any]:
    # Iterable types that are not lists of values: without an order, or with other items.
    if isinstance(value, str | bytes | bytearray | Mapping | set | frozenset) or not isinstance(value, Iterable):
        raise TypeError(f"{name} must be {expected}, got {type(value).__name__}")
    return list(value)


def _check_length(name: str, given: int, prompts: int) -> None:
    if given != prompts:
        raise InvalidRequest(f"The lengths of prompts ({prompts}) and {name} ({given}) must be the same.", field=name)
