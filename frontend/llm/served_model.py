"""ServedModel: facts of the model, read once from its tokenizer and an engine core."""

import functools
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from tetrad.frontend.config import FrontendSettings
from tetrad.frontend.engine.facts import EngineInfo, TokenizerInfo
from tetrad.frontend.further_models import media_loras, modules_of
from tetrad.frontend.llm.adapter_names import AdapterNames
from tetrad.frontend.llm.backends import Backends
from tetrad.frontend.llm.limits import Limits
from tetrad.frontend.llm.media_adapters import MediaAdapters
from tetrad.frontend.llm.media_limits import MediaLimits
from tetrad.frontend.llm.model_tasks import use_without_pooling
from tetrad.frontend.media.settings import item_limits
from tetrad.frontend.parsing.formats import ChatFormats, choose_chat_formats
from tetrad.frontend.request.outputs import LoRARequest
from tetrad.frontend.request.sampling_defaults import sampling_defaults
from tetrad.services.errors import FailedPrecondition, NotFound, Unsupported


class ModelNames:
    """The names of the model; responses have the first one.

    Args:
        names: at least one.
        root: the model that the names refer to: a path or a built-in name.
        adapters: the names of LoRA adapters.
    """

    def __init__(self, names: Sequence[str], *, root: str, adapters: AdapterNames | None = None) -> None:
        self.names = tuple(names)
        self.adapters = AdapterNames() if adapters is None else adapters
        self.root = root
        self.created_unix_s = int(time.time())

    def resolve(self, name: str | None) -> str:
        """Return the model name of the response: `name`, or the first name if it is empty. NotFound for an unknown name."""
        if not name:
            return self.names[0]
        self.lora_of(name)
        return name

    def lora_of(self, name: str | None) -> LoRARequest | None:
        """Return the adapter with this name; None: the name is empty or the model's own. NotFound for an unknown name."""
        if not name or name in self.names:
            return None
        found = self.adapters.get(name)
        if found is None:
            # Also if it was unloaded since the request named it: the base model must not answer in its place.
            raise NotFound(f"The model `{name}` does not exist.", field="model", reason="MODEL_NOT_FOUND")
        return found


@dataclass(frozen=True)
class ServedModel:
    """The facts of one model.

    Attributes:
        names: the names that clients may use.
        tokenizer: the tokenizer's facts.
        limits: the limits of requests.
        formats: the formats of the model's tool calls and reasoning.
        template_variables: the variables of the chat template for conversations that do not set them.
        media: the limits of images in prompts.
        names_reasoning: whether the settings name the format of reasoning; else it follows from the chat template.
        sampling_defaults: the model authors' sampling parameters, by SamplingParams' names; empty if they are not to be used.
        stream_interval: the default of requests that do not set it.
        transcribes: whether the model turns speech into text, and answers no chats.
        padded_vocab_size: ids of outputs are smaller; those beyond the tokenizer's vocabulary have no text. 0: the tokenizer's.
        media_adapters: the adapters of prompts with media.
    """

    names: ModelNames
    tokenizer: TokenizerInfo
    limits: Limits
    formats: ChatFormats
    sampling_defaults: dict[str, Any]
    media: MediaLimits
    stream_interval: int = 1
    template_variables: dict[str, Any] = field(default_factory=dict)
    names_reasoning: bool = False
    transcribes: bool = False
    padded_vocab_size: int = 0
    media_adapters: MediaAdapters = field(default_factory=lambda: MediaAdapters((), AdapterNames()))

    def check_chats(self) -> None:
        """Raise Unsupported, with the endpoint to use, if the model transcribes."""
        if self.transcribes:
            use = use_without_pooling(transcribes=True)
            raise Unsupported(f"The model does not support Chat Completions API: {use}", field="model")

    @classmethod
    async def of(cls, settings: FrontendSettings, tokenizer: TokenizerInfo, backends: Backends) -> Self:
        """Return the model behind these services.

        Raises:
            InvalidRequest: the settings name an unknown format.
            FailedPrecondition: the tokenizer does not fit the engine's model.
        """
        engine = backends.engines.info
        _check_vocabulary(tokenizer, engine)
        # Models pad their embedding matrix: ids beyond the tokenizer's vocabulary have no text.
        vocab_size = min(filter(None, (tokenizer.vocab_size, engine.vocab_size)))
        root = settings.model or tokenizer.model or engine.model
        formats = await choose_chat_formats(
            settings.tool_call_parser,
            settings.reasoning_parser,
            tokenizer.chat_template,
            functools.partial(backends.tokenizer.encode, add_special_tokens=False),
        )
        adapters = AdapterNames(modules_of(settings.lora_modules, settings.default_mm_loras), settings.lora_resolver_dir)
        media_adapters = MediaAdapters(media_loras(settings.default_mm_loras), adapters)
        media_adapters.check(root, [facts.modality for facts in tokenizer.modalities])
        recommended = tokenizer.generation_config if settings.use_generation_config else {}
        return cls(
            ModelNames(
                settings.served_model_names or (root,),
                root=root,
                adapters=adapters,
            ),
            tokenizer,
            Limits(settings, context=backends.engines, vocab_size=vocab_size),
            formats,
            sampling_defaults(recommended, settings.override_generation_config),
            MediaLimits(
                root,
                item_limits(settings.limit_mm_per_prompt),
                tokenizer.modalities,
                backends.engines,
                takes_embeds=settings.enable_mm_embeds,
            ),
            settings.stream_interval,
            template_variables=json.loads(settings.default_chat_template_kwargs or "{}"),
            names_reasoning=settings.reasoning_parser not in ("auto", "none"),
            transcribes=engine.supports_transcription,
            padded_vocab_size=engine.vocab_size,
            media_adapters=media_adapters,
        )


def _check_vocabulary(tokenizer: TokenizerInfo, engine: EngineInfo) -> None:
    """Refuse a tokenizer with ids that the model does not have: any prompt with such an id would fail."""
    if engine.vocab_size and tokenizer.vocab_size > engine.vocab_size:
        raise FailedPrecondition(
            f"The tokenizer of {tokenizer.model or 'the model'} has {tokenizer.vocab_size} tokens, but the model"
            f" {engine.model} has {engine.vocab_size}. Give both the same model."
        )
