"""Ollama objects: the answers of Ollama's API as msgspec structs."""

from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tetrad.frontend.api.http.schemas.objects import TokenLogprob

_MODEL = Meta(description="The name that answers.")
_CREATED = Meta(description="When it was written, as RFC 3339.")
_THINKING = Meta(description="What is new of the reasoning, of models that mark it.")
_LOGPROBS = Annotated[list[TokenLogprob] | UnsetType, Meta(description="Of the new tokens, with logprobs.")]


class Progress(msgspec.Struct, kw_only=True):
    """How far an answer is; the counts and durations are those of its end."""

    done: Annotated[bool, Meta(description="Whether this is the end.")] = False
    done_reason: Annotated[str | UnsetType, Meta(description="stop, length or load.")] = UNSET
    total_duration: Annotated[int | UnsetType, Meta(description="Nanoseconds from the request to its end.")] = UNSET
    load_duration: Annotated[int | UnsetType, Meta(description="Nanoseconds of loading: 0, the model is loaded.")] = UNSET
    prompt_eval_count: Annotated[int | UnsetType, Meta(description="Tokens of the prompt.")] = UNSET
    prompt_eval_duration: Annotated[int | UnsetType, Meta(description="Nanoseconds until the first token.")] = UNSET
    eval_count: Annotated[int | UnsetType, Meta(description="Generated tokens.")] = UNSET
    eval_duration: Annotated[int | UnsetType, Meta(description="Nanoseconds from the first token to the end.")] = UNSET


class Generated(Progress, kw_only=True):
    """An answer of /api/generate, or a line of it."""

    model: Annotated[str, _MODEL]
    created_at: Annotated[str, _CREATED]
    response: Annotated[str, Meta(description="What is new of the answer.")] = ""
    thinking: Annotated[str | UnsetType, _THINKING] = UNSET
    logprobs: _LOGPROBS = UNSET


class CalledFunction(msgspec.Struct):
    """A function that the model calls."""

    name: Annotated[str, Meta(description="The function.")]
    arguments: Annotated[
        dict[str, Any], Meta(description="Its arguments, as an object.", extra_json_schema={"additionalProperties": True})
    ]


class Called(msgspec.Struct):
    """A call."""

    id: Annotated[str, Meta(description="Names the call.")]
    function: Annotated[CalledFunction, Meta(description="What is called.")]


class AssistantMessage(msgspec.Struct):
    """The assistant's turn, or a part of it."""

    role: Annotated[str, Meta(description="Always assistant.")] = "assistant"
    content: Annotated[str, Meta(description="What is new of the answer.")] = ""
    thinking: Annotated[str | UnsetType, _THINKING] = UNSET
    tool_calls: Annotated[list[Called] | UnsetType, Meta(description="New calls, each complete.")] = UNSET


class Chatted(Progress, kw_only=True):
    """An answer of /api/chat, or a line of it."""

    model: Annotated[str, _MODEL]
    created_at: Annotated[str, _CREATED]
    message: Annotated[AssistantMessage, Meta(description="What is new of the assistant's turn.")]
    logprobs: _LOGPROBS = UNSET


class Embedded(msgspec.Struct):
    """The answer of /api/embed."""

    model: Annotated[str, _MODEL]
    embeddings: Annotated[list[list[float]], Meta(description="One for each input.")]
    total_duration: Annotated[int, Meta(description="Nanoseconds from the request to its end.")]
    load_duration: Annotated[int, Meta(description="Nanoseconds of loading: 0, the model is loaded.")]
    prompt_eval_count: Annotated[int, Meta(description="Tokens of all inputs.")]


class OneEmbedding(msgspec.Struct):
    """The answer of /api/embeddings."""

    embedding: Annotated[list[float], Meta(description="Of the prompt.")]


class ModelDetails(msgspec.Struct):
    """Facts about a model."""

    parent_model: Annotated[str, Meta(description="Of a LoRA adapter: the model that it changes. Empty: it is no adapter.")]
    quantization_level: Annotated[str, Meta(description="Data type of the weights, as far as it is known.")]


class ModelEntry(msgspec.Struct):
    """A name clients may ask for."""

    name: Annotated[str, Meta(description="What to send as `model`.")]
    model: Annotated[str, Meta(description="The same.")]
    modified_at: Annotated[str, Meta(description="When this server began to serve it, as RFC 3339.")]
    details: Annotated[ModelDetails, Meta(description="Facts about it.")]


class ModelEntries(msgspec.Struct):
    """The answer of /api/tags."""

    models: Annotated[list[ModelEntry], Meta(description="The first is the one that answers name.")]


class RunningModel(msgspec.Struct):
    """A model that is loaded."""

    name: Annotated[str, Meta(description="What to send as `model`.")]
    model: Annotated[str, Meta(description="The same.")]
    details: Annotated[ModelDetails, Meta(description="Facts about it.")]
    context_length: Annotated[int, Meta(description="Longest prompt plus output, in tokens.")]


class RunningModels(msgspec.Struct):
    """The answer of /api/ps."""

    models: Annotated[list[RunningModel], Meta(description="All names of the model: it is always loaded.")]


class ShownModel(msgspec.Struct):
    """The answer of /api/show."""

    modified_at: Annotated[str, Meta(description="When this server began to serve it, as RFC 3339.")]
    template: Annotated[str, Meta(description="The model's chat template, in Jinja. Empty: it has none.")]
    parameters: Annotated[str, Meta(description="The model's own sampling defaults, one in a line.")]
    details: Annotated[ModelDetails, Meta(description="Facts about it.")]
    model_info: Annotated[dict[str, int | str], Meta(description="Further facts, by `general.` and `tetrad.` names.")]
    capabilities: Annotated[list[str], Meta(description="completion, tools, thinking or embedding.")]


class VersionBody(msgspec.Struct):
    """The answer of /api/version."""

    version: Annotated[str, Meta(description="Of Tetrad.")]


def timestamp(unix_s: float | None = None) -> str:
    """Return a time as RFC 3339 in UTC; None: now."""
    moment = datetime.now(UTC) if unix_s is None else datetime.fromtimestamp(unix_s, UTC)
    return moment.isoformat().replace("+00:00", "Z")
