"""Pooling objects: the answers of the pooling routes as msgspec structs."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tetrad.frontend.api.http.pooling.cohere_bodies import CohereMeta
from tetrad.frontend.api.http.schemas.objects import Usage


class Embedding(msgspec.Struct):
    """The embedding of one input."""

    object: Annotated[str, Meta(description="Always embedding.")]
    index: Annotated[int, Meta(description="Which input.")]
    embedding: Annotated[list[float] | str, Meta(description="Numbers, or base64 of float32 values, little-endian.")]


class Embeddings(msgspec.Struct):
    """The answer of /v1/embeddings."""

    id: Annotated[str, Meta(description="Of this answer.")]
    object: Annotated[str, Meta(description="Always list.")]
    created: Annotated[int, Meta(description="Unix seconds.")]
    model: Annotated[str, Meta(description="The name that was asked for.")]
    data: Annotated[list[Embedding], Meta(description="In the order of the inputs.")]
    usage: Annotated[Usage, Meta(description="Tokens of all texts together.")]


class Classification(msgspec.Struct):
    """The classes of one input."""

    index: Annotated[int, Meta(description="Which input.")]
    label: Annotated[str | None, Meta(description="Name of the most likely class; null: the model names none.")]
    probs: Annotated[list[float], Meta(description="Of each class.")]
    num_classes: Annotated[int, Meta(description="Length of probs.")]


class Classifications(msgspec.Struct):
    """The answer of /classify."""

    id: Annotated[str, Meta(description="Of this answer.")]
    object: Annotated[str, Meta(description="Always list.")]
    created: Annotated[int, Meta(description="Unix seconds.")]
    model: Annotated[str, Meta(description="The name that was asked for.")]
    data: Annotated[list[Classification], Meta(description="In the order of the inputs.")]
    usage: Annotated[Usage, Meta(description="Tokens of all texts together.")]


class Pooled(msgspec.Struct):
    """The result of one input."""

    object: Annotated[str, Meta(description="Always pooling.")]
    index: Annotated[int, Meta(description="Which input.")]
    data: Annotated[list[Any] | str, Meta(description="Numbers, or rows of numbers, one for each token; or base64.")]


class Poolings(msgspec.Struct):
    """The answer of /pooling."""

    id: Annotated[str, Meta(description="Of this answer.")]
    object: Annotated[str, Meta(description="Always list.")]
    created: Annotated[int, Meta(description="Unix seconds.")]
    model: Annotated[str, Meta(description="The name that was asked for.")]
    data: Annotated[list[Pooled], Meta(description="In the order of the inputs.")]
    usage: Annotated[Usage, Meta(description="Tokens of all texts together.")]


class ScoreItem(msgspec.Struct):
    """The score of one pair."""

    index: Annotated[int, Meta(description="Which pair.")]
    object: Annotated[str, Meta(description="Always score.")]
    score: Annotated[float, Meta(description="Larger is better.")]


class ScoreAnswer(msgspec.Struct):
    """The answer of /score."""

    id: Annotated[str, Meta(description="Of this answer.")]
    object: Annotated[str, Meta(description="Always list.")]
    created: Annotated[int, Meta(description="Unix seconds.")]
    model: Annotated[str, Meta(description="The name that was asked for.")]
    data: Annotated[list[ScoreItem], Meta(description="In the order of the inputs.")]
    usage: Annotated[Usage, Meta(description="Tokens of all texts together.")]


class RankedText(msgspec.Struct):
    """A document."""

    text: Annotated[str, Meta(description="The document.")]


class Ranked(msgspec.Struct, omit_defaults=True):
    """One document in the ranking."""

    index: Annotated[int, Meta(description="Which of the request's documents.")]
    relevance_score: Annotated[float, Meta(description="Larger is more relevant.")]
    document: Annotated[RankedText | None, Meta(description="With return_documents.")] = None


class VoyageRanked(msgspec.Struct, omit_defaults=True):
    """One document in the ranking, in Voyage's form."""

    index: Annotated[int, Meta(description="Which of the request's documents.")]
    relevance_score: Annotated[float, Meta(description="Larger is more relevant.")]
    document: Annotated[str | None, Meta(description="With return_documents.")] = None


class Ranking(msgspec.Struct, omit_defaults=True):
    """The answer of /rerank, the most relevant document first."""

    id: Annotated[str, Meta(description="Of this answer.")]
    model: Annotated[str, Meta(description="The name that was asked for.")]
    usage: Annotated[Usage, Meta(description="Tokens of all texts together.")]
    results: Annotated[list[Ranked], Meta(description="The best first.")]
    meta: Annotated[CohereMeta, Meta(description="As in Cohere's API.")]
    data: Annotated[list[VoyageRanked] | None, Meta(description="The same in Voyage's form, if asked in this form.")] = None
