"""ChatRenderer: renders conversations to prompts, in other processes.

Called by the servicer. One process renders the model's own template and two render clients' templates: an endless loop in a
client's template delays only requests with such templates, and only for a limited time, since their queue is limited.
"""

import asyncio
import dataclasses
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tetrad.services.errors import InvalidRequest, Overloaded
from tetrad.services.sandbox.sandbox import Sandbox, SandboxDied, SandboxTimeout
from tetrad.tokenizer_svc.tokenizer.facts import LoadedTokenizer

_MODULE = "tetrad.tokenizer_svc.chat.template_process"


@dataclass(frozen=True)
class Conversation:
    """A conversation to render; the template process parses and checks its JSON."""

    messages_json: str
    tools_json: str = ""
    documents_json: str = ""
    chat_template_kwargs_json: str = ""
    chat_template: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    max_prompt_chars: int | None = None
    num_media: Mapping[str, int] = dataclasses.field(default_factory=dict)


_FIELDS = [field.name for field in dataclasses.fields(Conversation) if field.name not in ("chat_template", "max_prompt_chars")]


@dataclass(frozen=True)
class ChatLimits:
    """Limits for the rendering of one conversation, and for the number of conversations with clients' templates."""

    timeout_s: float = 5.0
    memory_bytes: int = 1 << 30
    max_prompt_bytes: int = 4 << 20
    foreign_processes: int = 2
    max_foreign: int = 16


class ChatRenderer:
    """Renders conversations with the model's template or with their own.

    Args:
        facts: the model's templates and special tokens.
        limits: limits of one conversation.
        media_texts: texts of items for templates that read only texts, by modality; without one, the modality is refused.
    """

    def __init__(self, facts: LoadedTokenizer, limits: ChatLimits, *, media_texts: Mapping[str, str] | None = None) -> None:
        self._media_texts = dict(media_texts or {})
        self._templates = dict(facts.chat_templates)
        self._special_tokens = facts.special.named()
        self._limits = limits
        self._own = _Lane(limits, "chat-own")
        self._foreign = [_Lane(limits, f"chat-foreign-{number}") for number in range(limits.foreign_processes)]

    async def start(self) -> None:
        """Start the process of the model's template, so that the first conversation does not wait for it."""
        if self._templates:
            await self._own.start()

    async def close(self) -> None:
        """Stop the processes; conversations that are being rendered fail."""
        await asyncio.gather(*(lane.close() for lane in (self._own, *self._foreign)))

    async def render(self, conversation: Conversation) -> str:
        """Return the prompt of a conversation.

        Raises:
            InvalidRequest: there is no template, the messages are invalid, or the template refuses them, fails or is too slow.
            Overloaded: too many conversations with their own templates are being rendered.
        """
        override = conversation.chat_template
        templates = self._templates if override is None else {"default": override}
        if "default" not in templates:
            text = (
                "The model has no chat template. Use /v1/completions, start the server with --chat-template FILE, or send"
                " chat_template."
            )
            raise InvalidRequest(text, field="chat_template", reason="NO_CHAT_TEMPLATE")
        fields = {name: getattr(conversation, name) for name in _FIELDS}
        most = self._limits.max_prompt_bytes
        limits = {"max_chars": most if conversation.max_prompt_chars is None else min(most, conversation.max_prompt_chars)}
        own = {"templates": templates, "special_tokens": self._special_tokens, "media_texts": self._media_texts}
        lane = self._own if override is None else self._choose_foreign()
        reply = await lane.exchange({**fields, **limits, **own})
        if "error" in reply:
            raise InvalidRequest(reply["error"], field=reply["field"])
        return reply["prompt"]

    def _choose_foreign(self) -> "_Lane":
        lane = min(self._foreign, key=lambda lane: lane.num_waiting)
        num_waiting = sum(lane.num_waiting for lane in self._foreign)
        if num_waiting >= self._limits.max_foreign:
            text = f"{num_waiting} conversations with chat templates of their own are being rendered, the limit; try later."
            raise Overloaded(text, field="chat_template", retry_after_s=self._limits.timeout_s)
        return lane


class _Lane:
    """One template process, and the thread that waits for it.

    Attributes:
        num_waiting: number of exchanges that run or wait; used on the event loop.
    """

    def __init__(self, limits: ChatLimits, name: str) -> None:
        self._limits = limits
        self._sandbox = Sandbox(_MODULE, memory_bytes=limits.memory_bytes, timeout_s=limits.timeout_s)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self.num_waiting = 0

    async def start(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._sandbox.start)

    async def close(self) -> None:
        self._sandbox.interrupt()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._sandbox.close)
        self._thread.shutdown(wait=False)

    async def exchange(self, request: dict[str, Any]) -> dict[str, str]:
        # Counted until the thread has finished it, even if the caller has left before.
        self.num_waiting += 1
        exchange = asyncio.get_running_loop().run_in_executor(self._thread, self._exchange, request)
        exchange.add_done_callback(self._note_done)
        return await exchange

    def _note_done(self, _: object) -> None:
        self.num_waiting -= 1

    def _exchange(self, request: dict[str, Any]) -> dict[str, str]:
        try:
            reply: dict[str, str] = json.loads(self._sandbox.exchange(json.dumps(request).encode()))
        except SandboxTimeout:
            text = f"Rendering the chat template took longer than {self._limits.timeout_s:g} s (chat_template_timeout_s)."
            raise InvalidRequest(text, field="chat_template") from None
        except SandboxDied:
            text = f"The chat template needs more than {self._limits.memory_bytes} bytes (chat_template_memory_bytes)."
            raise InvalidRequest(text, field="chat_template") from None
        return reply
