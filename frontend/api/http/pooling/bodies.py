"""Pooling protocol: the bodies of /v1/embeddings, /classify, /pooling, /score and /rerank."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from tetrad.frontend.api.http.chat.bodies import ChatMessage
from tetrad.frontend.api.http.schemas.fields import Body, FailFastList, Flag, Integer, Number, Strings, TokenIds
from tetrad.services.errors import InvalidRequest

Inputs = str | TokenIds | Strings | Annotated[list[TokenIds], FailFastList()]
Texts = str | Strings
_OLDER_ACTIVATIONS = ("normalize", "softmax", "activation")
_OLDER = "Not supported: older names of use_activation."
_TEXTS = "Not supported: inputs are texts."

Conversations = Annotated[list[ChatMessage], FailFastList()] | Annotated[list[list[ChatMessage]], FailFastList()]


class PoolingBody(Body):
    """Common fields of all pooling routes."""

    model: str | None = Field(None, description="A name that /v1/models lists. Unset: the first model.")
    user: str | None = Field(None, description="Accepted for compatibility; has no effect.")
    truncate_prompt_tokens: Integer | None = Field(
        None, description="Keep at most this many tokens of each text; -1: as many as the context has. Unset: none is cut off."
    )
    truncation_side: Literal["left", "right"] | None = Field(
        None, description="Which end is cut off. Unset: the right one, as sentence-transformers does."
    )
    request_id: str | None = Field(None, description="A name for the request. X-Request-Id goes before it.")
    priority: Number = Field(0, description="Larger is more urgent, where the engine schedules by priority.")
    cache_salt: str | None = Field(None, min_length=1, description="Only requests with the same one share cached prefixes.")
    use_activation: bool | None = Field(
        None, description="Normalise embeddings, or make probabilities of logits. Unset: as the model's files say."
    )
    normalize: Any = Field(None, description=_OLDER)
    softmax: Any = Field(None, description=_OLDER)
    activation: Any = Field(None, description=_OLDER)
    padding: str | None = Field(None, description="do_not_pad is the only value that is supported.")
    mm_processor_kwargs: dict[str, Any] | None = Field(None, description=_TEXTS)
    media_io_kwargs: dict[str, Any] | None = Field(None, description=_TEXTS)

    @model_validator(mode="after")
    def _refuse_unsupported(self) -> Self:
        # If these were ignored, the values would silently differ.
        for name in _OLDER_ACTIVATIONS:
            if getattr(self, name) is not None:
                raise InvalidRequest(f"{name} is vLLM's older name; use use_activation.", field=name)
        if self.padding not in (None, "do_not_pad"):
            raise InvalidRequest(
                f"padding must be do_not_pad, got {self.padding[:32]!r}: inputs are not padded.", field="padding"
            )
        for name in ("mm_processor_kwargs", "media_io_kwargs"):
            if getattr(self, name):
                raise InvalidRequest(f"{name} is not supported: inputs are texts.", field=name)
        return self


class InputBody(PoolingBody):
    """Common fields of the routes with independent inputs: texts, ids, or conversations."""

    input: Inputs | None = Field(None, description="A text, token ids, or a list of either. Either this or messages.")
    messages: Conversations | None = Field(
        None, description="A conversation, as for /v1/chat/completions, or a list of them: each becomes one input."
    )
    add_special_tokens: bool | None = Field(
        None,
        description="Add what the tokenizer puts around a text, such as [CLS] and [SEP]. Unset: to a text yes, to a "
        "conversation no, as its template has them.",
    )
    add_generation_prompt: Flag = Field(False, description="End a conversation with the opening of an assistant's turn.")
    continue_final_message: Flag = Field(False, description="Leave a conversation's last message open.")
    chat_template: str | None = Field(None, description="A Jinja chat template to use instead of the model's.")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="Further variables for the chat template.")

    @model_validator(mode="after")
    def _check_one_source(self) -> Self:
        if (self.input is None) == (self.messages is None):
            raise InvalidRequest("Exactly one of `input` and `messages` must be given.", field="input")
        if self.messages is None:
            for name in ("add_generation_prompt", "continue_final_message", "chat_template", "chat_template_kwargs"):
                if getattr(self, name):
                    raise InvalidRequest(f"{name} needs `messages`; `input` has no conversation.", field=name)
        return self


class EncodedBody(InputBody):
    """Common fields of the routes whose values may be base64."""

    encoding_format: Literal["float", "base64"] | None = Field(
        "float", description="float: numbers. base64: float32 values, little-endian, of several rows one after the other."
    )
    embed_dtype: str | None = Field(None, description="With base64: float32 is supported.")
    endianness: str | None = Field(None, description="With base64: little and native, which are the same, are supported.")

    @model_validator(mode="after")
    def _refuse_other_bytes(self) -> Self:
        if self.encoding_format == "base64":
            if self.embed_dtype not in (None, "float32"):
                text = f"embed_dtype must be float32, got {self.embed_dtype[:32]!r}: no other type is supported."
                raise InvalidRequest(text, field="embed_dtype")
            if self.endianness not in (None, "little", "native"):
                text = f"endianness must be little or native, got {self.endianness[:32]!r}: base64 is of little-endian values."
                raise InvalidRequest(text, field="endianness")
        return self


class EmbeddingRequest(EncodedBody):
    """POST /v1/embeddings."""

    dimensions: Integer | None = Field(
        None, description="Length of each embedding, for models with Matryoshka embeddings. Unset: the model's."
    )
    output_dtype: str | None = Field(None, description="Of Voyage's client: `float` is supported.")
    output_dimension: Any = Field(None, description="Not supported, Voyage's name: use dimensions.")

    @model_validator(mode="after")
    def _refuse_voyages_forms(self) -> Self:
        # Voyage's client would read the bytes of floats as numbers of the type that it asked for.
        if self.output_dtype not in (None, "float"):
            text = f"output_dtype must be float, got {self.output_dtype[:32]!r}: no other type is supported."
            raise InvalidRequest(text, field="output_dtype")
        if self.output_dimension is not None:
            raise InvalidRequest("output_dimension is not supported: use dimensions.", field="output_dimension")
        return self


class ClassifyRequest(InputBody):
    """POST /classify."""


class PoolingRequest(EncodedBody):
    """POST /pooling."""

    task: Literal["embed", "classify", "token_embed", "token_classify"] | None = Field(
        None, description="What to make of each input. Unset: the model's first task."
    )
    dimensions: Any = Field(None, description="Not supported here; /v1/embeddings has it.")

    @model_validator(mode="after")
    def _refuse_dimensions(self) -> Self:
        if self.dimensions is not None:
            raise InvalidRequest("dimensions is currently not supported", field="dimensions")
        return self


class PairBody(PoolingBody):
    """Common fields of the routes that score queries against documents."""

    max_tokens_per_query: Integer | None = Field(
        None, description="Keep at most this many tokens of each query. Unset or 0: all."
    )
    max_tokens_per_doc: Integer | None = Field(
        None, description="Keep at most this many tokens of each document. Unset or 0: all."
    )
    instruction: str | None = Field(
        None, description="The task, for the chat template that writes the pairs of a reranker. Unset: the template's own."
    )
    chat_template: str | None = Field(
        None,
        description="A Jinja template that writes each pair, of two messages with the roles query and document. Unset: the "
        "one of --chat-template; without it, the tokenizer joins the pair.",
    )
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="Further variables for that template.")


class ScoreRequest(PairBody):
    """POST /score: scores one text against several, or pairs of texts. The field names of other servers are accepted, too."""

    text_1: Texts | None = Field(None, description="The query, or one query for each document.")
    text_2: Texts | None = Field(None, description="The documents.")
    data_1: Texts | None = Field(None, description="The same as text_1.")
    data_2: Texts | None = Field(None, description="The same as text_2.")
    queries: Texts | None = Field(None, description="The same as text_1.")
    documents: Texts | None = Field(None, description="The same as text_2.")
    items: Texts | None = Field(None, description="The same as text_2.")

    @model_validator(mode="after")
    def _take_other_names(self) -> Self:
        firsts = [each for each in (self.text_1, self.data_1, self.queries) if each is not None]
        seconds = [each for each in (self.text_2, self.data_2, self.documents, self.items) if each is not None]
        if not firsts or not firsts[0]:
            raise InvalidRequest("At least one text element must be given", field="text_1")
        if not seconds or not seconds[0]:
            raise InvalidRequest("At least one text_pair element must be given", field="text_2")
        self.text_1, self.text_2 = firsts[0], seconds[0]
        return self


class RerankDocument(Body):
    """A document of Cohere's or Jina's clients."""

    text: str = Field(description="The document.")


class RerankRequest(PairBody):
    """POST /rerank."""

    query: str = Field(description="The query.")
    documents: Annotated[list[str | RerankDocument], FailFastList()] = Field(description="The documents.")
    top_n: Integer | None = Field(None, description="Return so many of the best documents. Unset or 0: all.")
    return_documents: Flag = Field(True, description="Repeat each document in its result.")
    top_k: Integer | None = Field(None, description="Voyage's name of top_n. The answer then has Voyage's `data`, too.")
    truncation: bool | None = Field(
        None,
        description="Of Voyage's clients. true: documents that do not fit the context are cut off; otherwise they are refused. "
        "The answer then has Voyage's `data`, too.",
    )
    raw_scores: bool | None = Field(None, description="Of Infinity's clients. true: as use_activation false.")
    rank_fields: Strings | None = Field(None, description="Of Cohere's older clients: documents have the field `text` alone.")
    max_chunks_per_doc: Any = Field(None, description="Not supported, of Cohere's older clients: use max_tokens_per_doc.")

    @property
    def is_voyages(self) -> bool:
        """Whether the request has fields of Voyage's clients."""
        return self.top_k is not None or self.truncation is not None

    @model_validator(mode="after")
    def _take_other_names(self) -> Self:
        if self.top_k is not None:
            if self.top_n is not None and self.top_n != self.top_k:
                raise InvalidRequest(f"top_k {self.top_k} and top_n {self.top_n} differ; give one of them.", field="top_k")
            if self.top_k < 0:
                raise InvalidRequest(f"top_k must be at least 0, got {self.top_k}.", field="top_k")
            self.top_n = self.top_k
        if self.truncation and self.truncate_prompt_tokens is None:
            self.truncate_prompt_tokens = -1
        if self.raw_scores:
            if self.use_activation:
                raise InvalidRequest("raw_scores and use_activation exclude each other.", field="raw_scores")
            self.use_activation = False
        return self

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.rank_fields is not None and self.rank_fields != ["text"]:
            raise InvalidRequest("rank_fields must be ['text']: documents have no other field.", field="rank_fields")
        if self.max_chunks_per_doc is not None:
            text = "max_chunks_per_doc is not supported: use max_tokens_per_doc."
            raise InvalidRequest(text, field="max_chunks_per_doc")
        if not self.documents:
            raise InvalidRequest("documents must not be empty.", field="documents")
        if self.top_n is not None and self.top_n < 0:
            raise InvalidRequest(f"top_n must be at least 0, got {self.top_n}.", field="top_n")
        return self

    def texts(self) -> list[str]:
        """Return the documents' texts."""
        return [each if isinstance(each, str) else each.text for each in self.documents]
