"""Cohere's protocol: body and answer of /v2/embed, and the `meta` object of the answers of /v2/embed and /rerank."""

from typing import Annotated, Any, Literal, Self

import msgspec
from msgspec import Meta
from pydantic import Field, model_validator

from tetrad.frontend.api.http.schemas.fields import Body, FailFastList, Integer, Number, Strings
from tetrad.services.errors import InvalidRequest

EmbeddingType = Literal["float", "binary", "ubinary", "base64"]


class CohereTextPart(Body):
    """A part of an input."""

    type: Literal["text"] = Field(description="text: the models served here read nothing else.")
    text: str = Field(description="The text.")


class CohereInput(Body):
    """An input in parts, which are joined by line breaks."""

    content: Annotated[list[CohereTextPart], FailFastList()] = Field(description="The parts.")


class CohereEmbedRequest(Body):
    """POST /v2/embed."""

    model: str | None = Field(None, description="A name that /v1/models lists. Unset: the first model.")
    texts: Strings | None = Field(None, description="The inputs. Either this or inputs.")
    inputs: Annotated[list[CohereInput], FailFastList()] | None = Field(None, description="The inputs, each in parts.")
    images: Any = Field(None, description="Not supported.")
    input_type: str | None = Field(
        None,
        description="What the inputs are for: search_query, search_document, classification, clustering, or the name of one of "
        "the model's prompts. The prompt that the model's authors wrote for it goes before each input; most models have none.",
    )
    output_dimension: Integer | None = Field(None, description="As `dimensions` of /v1/embeddings.")
    embedding_types: Annotated[list[EmbeddingType], FailFastList()] | None = Field(
        None,
        description="Forms of the answer. float: numbers. base64: float32 values, little-endian. ubinary: a bit for each "
        "value, 1 for 0 and above, the first one highest in its byte. binary: these bytes less 128. Unset: float.",
    )
    truncate: Literal["NONE", "START", "END"] = Field(
        "END", description="Which end of an input is cut off that is too long. NONE: such an input is refused."
    )
    max_tokens: Integer | None = Field(None, ge=1, description="Keep at most this many tokens of each input.")
    priority: Number = Field(0, description="Larger is more urgent, where the engine schedules by priority.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.images is not None:
            raise InvalidRequest("images are not supported; the models served here read texts.", field="images")
        if (self.texts is None) == (self.inputs is None):
            raise InvalidRequest("Exactly one of `texts` and `inputs` must be given.", field="texts")
        if self.truncate == "NONE" and self.max_tokens is not None:
            text = "max_tokens is where an input is cut off, and with truncate NONE none is. Leave one of them out."
            raise InvalidRequest(text, field="max_tokens")
        return self

    def all_texts(self) -> list[str]:
        """Return the inputs' texts."""
        if self.texts is not None:
            return self.texts
        return ["\n".join(part.text for part in each.content) for each in self.inputs or ()]


class CohereEmbeddings(msgspec.Struct, omit_defaults=True, rename={"floats": "float"}):
    """Embeddings in each requested form, in the order of the inputs."""

    floats: Annotated[list[list[float]] | None, Meta(description="Numbers.")] = None
    base64: Annotated[list[str] | None, Meta(description="Base64 of float32 values, little-endian.")] = None
    ubinary: Annotated[list[list[int]] | None, Meta(description="Bits, in bytes of 0 to 255.")] = None
    binary: Annotated[list[list[int]] | None, Meta(description="Bits, in bytes of -128 to 127.")] = None


class CohereVersion(msgspec.Struct):
    """The version of an API."""

    version: Annotated[str, Meta(description="Always 2.")]


class CohereUnits(msgspec.Struct):
    """Number of tokens that were read."""

    input_tokens: Annotated[int, Meta(description="Tokens of all inputs together.")]


class CohereMeta(msgspec.Struct):
    """Facts about an answer."""

    api_version: Annotated[CohereVersion, Meta(description="Of this API.")]
    billed_units: Annotated[CohereUnits, Meta(description="Nothing is billed; clients read the number of tokens here.")]


def cohere_meta(num_tokens: int) -> CohereMeta:
    """Return the facts about an answer that read so many tokens."""
    return CohereMeta(CohereVersion("2"), CohereUnits(num_tokens))


class CohereAnswer(msgspec.Struct):
    """The answer of /v2/embed."""

    id: Annotated[str, Meta(description="Of this answer.")]
    embeddings: Annotated[CohereEmbeddings, Meta(description="In each form that was asked for.")]
    texts: Annotated[list[str], Meta(description="The inputs.")]
    meta: Annotated[CohereMeta, Meta(description="Facts about the answer.")]
    response_type: Annotated[str, Meta(description="Always embeddings_by_type.")]
