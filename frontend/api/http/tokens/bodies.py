"""Token bodies: the bodies of /tokenize and /detokenize."""

from typing import Any, Self

from pydantic import Field, model_validator

from tetrad.frontend.api.http.chat.bodies import ChatMessage, ToolBody
from tetrad.frontend.api.http.schemas.fields import Body, Flag, TokenIds
from tetrad.services.errors import InvalidRequest


class TokenizeRequest(Body):
    """POST /tokenize: a prompt or messages."""

    model: str | None = Field(None, description="A name that /v1/models lists. Unset: the first model.")
    prompt: str | None = Field(None, description="The text. Either this or messages.")
    messages: list[ChatMessage] | None = Field(None, description="The conversation, as for /v1/chat/completions.")
    add_special_tokens: bool | None = Field(
        None, description="Add BOS and the like. Unset: to a prompt yes, to a conversation no, as its template has them."
    )
    return_token_strs: bool | None = Field(False, description="Return the vocabulary's entry of each token, too.")
    add_generation_prompt: bool | None = Field(
        None,
        description="End the conversation with the opening of an assistant's turn. Unset: unless a message is continued.",
    )
    continue_final_message: Flag = Field(False, description="Leave the last message open, for the model to continue.")
    tools: list[ToolBody] | None = Field(None, description="Functions that the chat template shows to the model.")
    documents: list[dict[str, Any]] | None = Field(None, description="Documents for chat templates of retrieval models.")
    chat_template: str | None = Field(None, description="A Jinja chat template to use instead of the model's.")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="Further variables for the chat template.")
    mm_processor_kwargs: dict[str, Any] | None = Field(
        None, description="Settings of the model's image processor, such as {min_pixels, max_pixels} or {size}."
    )
    media_io_kwargs: dict[str, Any] | None = Field(
        None, description="How media files are read, such as {video: {num_frames, fps}}; see chat completions."
    )

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise InvalidRequest("Exactly one of `prompt` and `messages` must be given.", field="prompt")
        return self


class DetokenizeRequest(Body):
    """POST /detokenize."""

    model: str | None = Field(None, description="A name that /v1/models lists. Unset: the first model.")
    tokens: TokenIds = Field(description="Token ids.")
