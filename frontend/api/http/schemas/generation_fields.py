"""Generation fields: the common fields of /v1/completions and /v1/chat/completions, with OpenAI's and vLLM's names.

They are converted to SamplingParams; unset fields have the model's defaults, else OpenAI's.
"""

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from tetrad.frontend.api.http.schemas.fields import Body, Integer, Number, Strings, Text, TokenIds
from tetrad.frontend.api.http.schemas.sampling_fields import SamplingFields
from tetrad.frontend.request.sampling_params import RepetitionDetection, RequestOutputKind, SamplingParams
from tetrad.frontend.request.structured_outputs import StructuredOutputsParams
from tetrad.services.errors import InvalidRequest


class StreamOptions(Body):
    """Chunks of a stream besides its deltas."""

    include_usage: bool | None = Field(
        False, description="Send one more chunk before [DONE], without choices, that has the usage of the whole request."
    )
    continuous_usage_stats: bool | None = Field(
        False, description="Send the usage so far with every chunk, too; needs include_usage."
    )
    include_obfuscation: bool | None = Field(None, description="Accepted without effect: streams are not padded.")


class JsonSchemaFormat(Body):
    """The `json_schema` of a response format."""

    name: Text = Field("", description="Name of the schema; for people.")
    description: str | None = Field(None, description="What the answer is for; for people.")
    schema_: dict[str, Any] | None = Field(None, alias="schema", description="JSON schema that the answer satisfies.")
    strict: bool | None = Field(
        None, description="Objects have no properties but those listed. Answers always satisfy the schema."
    )


class ResponseFormat(Body):
    """The format that the output is constrained to."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"] = Field(
        description="text: no constraint; json_object: any JSON object; json_schema: JSON that satisfies a schema;"
        " structural_tag: text in which parts between tags satisfy schemas."
    )
    json_schema: JsonSchemaFormat | None = Field(None, description="With type json_schema: the schema.")
    schema_: dict[str, Any] | None = Field(
        None, alias="schema", description="With type json_object: the JSON schema of the object, as llama.cpp takes it."
    )
    value: dict[str, Any] | None = Field(
        None, description="With type json_object: the same, as TGI takes it and huggingface_hub's InferenceClient sends it."
    )
    structures: list[dict[str, Any]] | None = Field(
        None, description="With type structural_tag: {begin, schema, end} of each kind of part."
    )
    triggers: list[str] | None = Field(None, description="With type structural_tag: texts that begin one of the parts.")
    format: dict[str, Any] | None = Field(None, description="With type structural_tag: the structure, in its newer notation.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.type == "json_schema" and (self.json_schema is None or self.json_schema.schema_ is None):
            raise InvalidRequest("response_format of type json_schema needs json_schema.schema", field="response_format")
        schemas = {name: schema for name, schema in (("schema", self.schema_), ("value", self.value)) if schema is not None}
        if schemas and self.type != "json_object":
            text = f"response_format.{next(iter(schemas))} needs type json_object, got {self.type}."
            raise InvalidRequest(text, field="response_format")
        if len(schemas) > 1:
            text = "response_format.schema and response_format.value are the same field: only one can be given."
            raise InvalidRequest(text, field="response_format")
        if self.type == "structural_tag" and self.format is None and (self.structures is None or self.triggers is None):
            text = "response_format of type structural_tag needs format, or structures and triggers"
            raise InvalidRequest(text, field="response_format")
        return self


class RepetitionDetectionBody(Body):
    """The conditions for ending an output that repeats itself."""

    max_pattern_size: Number = Field(0, description="Longest pattern looked for, in tokens; 0: off.")
    min_pattern_size: Number = Field(0, description="Shortest pattern looked for, in tokens.")
    min_count: Number = Field(0, description="Number of consecutive repetitions of a pattern that ends the output.")


_OLDER_CONSTRAINTS = ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structural_tag")
"""Fields of vLLM before 0.12. An unknown field is ignored, but an ignored constraint would change the answer.

Clients of both versions (guidance's VLLMModel) send them beside the same kind of structured_outputs: then nothing is lost.
"""


class SamplingBody(SamplingFields):
    """Common fields of completions and chats. None means the default."""

    model: str | None = Field(None, description="A name that /v1/models lists. Unset: the first model.")
    stream: bool | None = Field(False, description="Send the answer as server-sent events while it is generated.")
    stream_options: StreamOptions | None = Field(None, description="What the stream says besides its deltas; needs stream.")
    n: Integer | None = Field(1, description="How many outputs for each prompt; they share the prompt's computation.")
    stop: str | Strings | None = Field(
        None, description="Up to 4 texts that end the output; it ends before the first that comes."
    )
    max_tokens: Integer | None = Field(None, description="Maximum number of tokens to generate, limited by the context.")
    prompt_logprobs: Integer | None = Field(
        None, description="Return log-probabilities of the prompt's tokens and of this many rivals each; -1: of all tokens."
    )
    logprob_token_ids: TokenIds | None = Field(
        None, description="Return the log-probabilities of these token ids at every position, instead of the most likely ones."
    )
    return_tokens_as_token_ids: bool | None = Field(
        None, description="Show tokens in log-probabilities as `token_id:5`, which is unambiguous where bytes are no text."
    )
    truncate_prompt_tokens: Integer | None = Field(
        None,
        description="Keep this many tokens of the prompt; -1: as many as fit besides max_tokens. Unset: all.",
    )
    truncation_side: Literal["left", "right"] | None = Field(
        None, description="Which end of the prompt truncation drops. Unset: left."
    )
    repetition_detection: RepetitionDetectionBody | None = Field(
        None, description="End outputs that repeat themselves, with finish_reason repetition."
    )
    thinking_token_budget: Integer | None = Field(
        None, description="Maximum number of reasoning tokens, for models that have a reasoning parser; -1: no limit."
    )
    stream_interval: Integer | None = Field(
        None, description="With stream: new tokens that a further event waits for; the first and the last wait for nothing."
    )
    response_format: ResponseFormat | None = Field(None, description="Constrains the output to JSON, a schema or tagged parts.")
    return_token_ids: bool | None = Field(None, description="Return the ids of prompt and output as well.")
    user: str | None = Field(None, description="Accepted without effect: no account is kept of end users.")
    kv_transfer_params: dict[str, Any] | None = Field(
        None,
        description="For routers, as in vLLM: what the engine core does with the prompt's KV blocks for another one. Needs"
        " engine cores with --kv-role.",
    )

    use_beam_search: bool | None = Field(None, description="Not supported here: use LLM.beam_search.")

    REFUSED: ClassVar[tuple[str, ...]] = ("watermarking", "logits_processors", "ec_transfer_params")

    @model_validator(mode="before")
    @classmethod
    def _refuse_older_constraints(cls, data: object) -> object:
        given = data if isinstance(data, dict) else {}
        newer = given.get("structured_outputs")
        for name in _OLDER_CONSTRAINTS:
            kind = name.removeprefix("guided_")
            is_repeated = isinstance(newer, dict) and newer.get(kind) is not None
            if given.get(name) is not None and not is_repeated:
                text = f"{name} is vLLM's older name; use structured_outputs with {kind}."
                raise InvalidRequest(text, field=name)
        return data

    @model_validator(mode="after")
    def _check_common(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("Stream options can only be defined when `stream=True`.", field="stream_options")
        if self.prompt_logprobs is not None and self.stream:
            raise InvalidRequest("`prompt_logprobs` are not available when `stream=True`.", field="prompt_logprobs")
        if self.use_beam_search:
            text = "use_beam_search is not supported over HTTP; LLM.beam_search of the Python package does it."
            raise InvalidRequest(text, field="use_beam_search")
        return self


_FORMAT = "response_format"
_FURTHER = ("n", "stop", "prompt_logprobs", "logprob_token_ids", "stream_interval", "thinking_token_budget")


def sampling_params_of(
    body: SamplingBody,
    defaults: dict[str, Any],
    *,
    max_tokens: int | None,
    logprobs: int | None,
    with_format: bool = True,
) -> SamplingParams:
    """Return the sampling parameters of a body.

    Args:
        body: the body of the request.
        defaults: the model's defaults, by SamplingParams' names.
        max_tokens: the value from the API's fields; None: as many as fit the context.
        logprobs: the value from the API's fields.
        with_format: whether response_format constrains the output. False if the output consists of calls, not text.

    Raises:
        InvalidRequest: a value out of range.
    """
    further = {name: value for name in _FURTHER if (value := getattr(body, name)) is not None}
    fields = defaults | body.given_sampling_fields() | further
    kind = RequestOutputKind.DELTA if body.stream else RequestOutputKind.FINAL_ONLY
    return SamplingParams(
        **fields,
        max_tokens=max_tokens,
        logprobs=logprobs,
        structured_outputs=_structured_outputs(body, with_format=with_format),
        repetition_detection=_repetition_detection(body),
        output_kind=kind,
    )


def _repetition_detection(body: SamplingBody) -> RepetitionDetection | None:
    wanted = body.repetition_detection
    return None if wanted is None else RepetitionDetection(**wanted.model_dump())


def _structured_outputs(body: SamplingBody, *, with_format: bool) -> StructuredOutputsParams | None:
    wanted, form = body.structured_outputs, body.response_format
    if form is not None and form.type != "text":
        if wanted is not None:
            text = "Only one of response_format and structured_outputs can be given."
            raise InvalidRequest(text, field=_FORMAT)
        if not with_format:
            return None
        if form.type == "json_object":
            of_object = form.value if form.schema_ is None else form.schema_
            if of_object is not None:
                return StructuredOutputsParams(json=of_object, request_field=_FORMAT)
            return StructuredOutputsParams(json_object=True, request_field=_FORMAT)
        if form.type == "structural_tag":
            return StructuredOutputsParams(structural_tag=form.model_dump_json(exclude_none=True), request_field=_FORMAT)
        schema = form.json_schema
        assert schema is not None
        # OpenAI accepts strict schemas only if every object is closed.
        closed = schema.strict is True
        return StructuredOutputsParams(json=schema.schema_, disable_additional_properties=closed, request_field=_FORMAT)
    return None if wanted is None else wanted.to_params()
