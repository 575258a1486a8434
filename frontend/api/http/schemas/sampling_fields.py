"""Sampling fields: the fields of SamplingParams in all APIs, with vLLM's names. Unset means the default."""

from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from tetrad.frontend.api.http.schemas.fields import Body, Flag, Integer, Number, Strings, TokenIds
from tetrad.frontend.request.sampling_values import EXTRA_ARGS, VllmXargs
from tetrad.frontend.request.structured_outputs import StructuredOutputsParams
from tetrad.services.errors import InvalidRequest


class StructuredOutputsBody(Body):
    """vLLM's `structured_outputs`: exactly one constraint, and its options."""

    json_: str | dict[str, Any] | None = Field(None, alias="json", description="A JSON schema, as JSON or as text.")
    regex: str | None = Field(None, description="A regular expression for the whole output.")
    choice: list[str] | None = Field(None, description="The allowed outputs.")
    grammar: str | None = Field(None, description="A grammar in Lark or EBNF notation.")
    json_object: bool | None = Field(None, description="True: any JSON object.")
    structural_tag: str | None = Field(None, description="Structural tags, as JSON text.")
    disable_any_whitespace: Flag = Field(False, description="Forbid white space between the tokens of JSON.")
    disable_additional_properties: Flag = Field(False, description="Treat the objects of a schema as closed.")
    whitespace_pattern: str | None = Field(None, description="Regular expression for white space between the tokens of JSON.")

    def to_params(self) -> StructuredOutputsParams:
        """Return the constraint; InvalidRequest if there is none or several."""
        fields = self.model_dump()
        return StructuredOutputsParams(json=fields.pop("json_"), **fields)


class SamplingFields(Body):
    """Sampling parameters and priority of a request."""

    temperature: float | None = Field(
        None, description="0 takes the most likely token, more is more random; 0 to 2. Unset: the model's own default, or 1."
    )
    top_p: float | None = Field(
        None, description="Draw from the most likely tokens that together have this probability; above 0, at most 1."
    )
    top_k: Integer | None = Field(None, description="Draw from this many most likely tokens; 0 or -1: from all.")
    min_p: float | None = Field(None, description="Drop tokens less likely than this times the most likely one; 0 to 1.")
    repetition_penalty: float | None = Field(
        None, description="Above 1 makes tokens of the prompt and the output so far less likely, below 1 more likely."
    )
    presence_penalty: float | None = Field(
        None, description="Taken off the logit of each token that the output has so far; -2 to 2."
    )
    frequency_penalty: float | None = Field(
        None, description="Taken off the logit of each token as often as the output has it so far; -2 to 2."
    )
    seed: Integer | None = Field(
        None,
        description="Makes draws repeatable, in any batch. Output i of n uses seed + i. Unset: a random one.",
    )
    stop_token_ids: TokenIds | None = Field(None, description="Token ids that end the output, besides the model's own.")
    include_stop_str_in_output: bool | None = Field(None, description="Leave the stop text in the output.")
    ignore_eos: bool | None = Field(None, description="Go on after the model's end of text.")
    min_tokens: Integer | None = Field(None, description="Tokens before which neither end of text nor stops end the output.")
    logit_bias: dict[str, float] | None = Field(
        None, description="Token id (as text) to what is added to its logit, -100 to 100."
    )
    allowed_token_ids: TokenIds | None = Field(None, description="The only token ids that may be generated.")
    bad_words: Strings | None = Field(None, description="Texts that are never generated.")
    skip_special_tokens: bool | None = Field(None, description="Leave special tokens out of the text. Unset: true.")
    spaces_between_special_tokens: bool | None = Field(
        None, description="Put spaces between special tokens that are shown. Unset: true."
    )
    structured_outputs: StructuredOutputsBody | None = Field(
        None, description="Constrains the output to a schema, regular expression, choice or grammar; not with response_format."
    )
    vllm_xargs: dict[str, Any] | None = Field(
        None, description="Values for the server's custom logits processors, by names that these choose."
    )
    priority: Number = Field(0, description="Larger is more urgent, where the server schedules by priority.")
    request_id: str | None = Field(
        None, description="Names the request, in its id and in logs. Unset: as the X-Request-Id header says."
    )
    cache_salt: str | None = Field(
        None,
        min_length=1,
        description="Requests share cached prefixes only with those of the same salt; 1 to 128 characters. Unset: no salt.",
    )
    watermarking: bool | None = Field(None, description="Not supported: true is refused.")
    logits_processors: Any = Field(None, description="Not supported: vllm_xargs has values for the server's own processors.")
    kv_transfer_params: dict[str, Any] | None = Field(None, description="Not supported by this endpoint.")
    ec_transfer_params: dict[str, Any] | None = Field(None, description="Not supported: no encoder connector is configured.")

    REFUSED: ClassVar[tuple[str, ...]] = ("watermarking", "logits_processors", "kv_transfer_params", "ec_transfer_params")

    @model_validator(mode="after")
    def _refuse_unsupported(self) -> Self:
        for name in self.REFUSED:
            if getattr(self, name):
                raise InvalidRequest(f"{name} is not supported by this server.", field=name)
        return self

    def given_sampling_fields(self) -> dict[str, Any]:
        """Return the fields that the client has set, by SamplingParams' names."""
        given = {name: value for name in _PARAMS if (value := getattr(self, name)) is not None}
        return given if self.vllm_xargs is None else given | {EXTRA_ARGS: VllmXargs(self.vllm_xargs)}


_OTHERS = ("structured_outputs", "priority", "request_id", "cache_salt", "vllm_xargs", *SamplingFields.REFUSED)
_PARAMS = tuple(name for name in SamplingFields.model_fields if name not in _OTHERS)
"""Fields with SamplingParams' names."""
