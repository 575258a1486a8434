"""PairPrompts: writes pairs of texts with a chat template, for rerankers that read a query and a document in one prompt.

Called by the servicer. A pair becomes a conversation of two messages with the roles "query" and "document", as in vLLM. The
template is the client's or that of the service's settings; the model's own chat template is not used for pairs.
"""

import json
from dataclasses import dataclass

from tetrad.services.errors import InvalidRequest
from tetrad.tokenizer_svc.chat.renderer import ChatRenderer, Conversation
from tetrad.tokenizer_svc.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class PairTemplate:
    """The template of a request for pairs.

    Attributes:
        source: Jinja text; None: the template of the service's settings.
        kwargs_json: further variables of the template, as a JSON object; empty: none.
    """

    source: str | None = None
    kwargs_json: str = ""


class PairPrompts:
    """Writes pairs of texts as prompts.

    Args:
        tokenizer: the model's tokenizer.
        chat: renders templates; owned by the caller.
    """

    def __init__(self, tokenizer: Tokenizer, chat: ChatRenderer) -> None:
        self._tokenizer, self._chat = tokenizer, chat

    def writes(self, template: PairTemplate) -> bool:
        """Return whether there is a template for pairs. Raises InvalidRequest for variables without a template."""
        if template.source is not None or self._tokenizer.facts.pair_template is not None:
            return True
        if template.kwargs_json:
            text = (
                "instruction and chat_template_kwargs need a chat template for pairs: start the server with "
                "--chat-template FILE, or send chat_template."
            )
            raise InvalidRequest(text, field="chat_template_kwargs_json", reason="NO_CHAT_TEMPLATE")
        return False

    async def write(self, pair: tuple[str, str], template: PairTemplate) -> str:
        """Return the prompt of a pair. Raises the errors of ChatRenderer.render."""
        messages = [{"role": role, "content": text} for role, text in zip(("query", "document"), pair, strict=True)]
        return await self._chat.render(
            Conversation(
                messages_json=json.dumps(messages),
                chat_template_kwargs_json=template.kwargs_json,
                chat_template=template.source,
                add_generation_prompt=False,
            )
        )

    def shortened(self, pair: tuple[str, str], surplus: int, max_tokens: int) -> tuple[str, str]:
        """Return the pair without the last `surplus` tokens of its second text. Raises InvalidRequest if nothing remains."""
        query, document = pair
        ids = self._tokenizer.encode(document, add_special_tokens=False)
        # The bytes of a character may be several tokens: those of one that is cut in two are decoded to U+FFFD.
        shorter = self._tokenizer.decode(ids[: max(0, len(ids) - surplus)]).rstrip("\N{REPLACEMENT CHARACTER}")
        if not shorter or len(shorter) >= len(document):
            text = f"The query and the chat template leave no room for the document in the {max_tokens} tokens of the pair."
            raise InvalidRequest(text, field="texts")
        return query, shorter
