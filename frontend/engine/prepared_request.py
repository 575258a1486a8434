"""PreparedRequest: a checked request with its sequences, and the fields of an EngineCoreRequest that these share.

Made by the input processor, encoded by wire.py.
"""

from dataclasses import dataclass, field

from tetrad.frontend.media.speech import SpeechRules
from tetrad.frontend.parsing.formats import MarkIds
from tetrad.frontend.request.kv_transfer import KvTransfer
from tetrad.frontend.request.prompt_embeds import PromptEmbeds
from tetrad.frontend.request.request_state import RequestState


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRequest:
    """A request that an engine core can run.

    Attributes:
        state: the request with its sequences.
        eos_token_id: id that ends an output, unless the parameters ignore it.
        stop_token_ids: further ids that end an output.
        bad_words_token_ids: sequences of ids that must not be generated.
        thinking: the marks of the reasoning that has a budget; None: there is no budget or no reasoning.
        priority: a larger value is more urgent.
        cache_salt: only requests with the same salt share prefixes.
        data_parallel_rank: rank of the engine core that the request is pinned to; None: it is not pinned.
        predicted_ids: token ids that the caller expects as the output.
        embeds: the embeddings of the prompt; None: there are none.
        kv_transfer: what the engine core does with the prompt's KV blocks for another one; None: nothing.
        speech_rules: what a model of speech may write; None: anything.
        audio_positions: see RequestOptions.
    """

    state: RequestState
    eos_token_id: int | None
    stop_token_ids: list[int]
    bad_words_token_ids: list[list[int]]
    thinking: MarkIds | None
    priority: int
    cache_salt: str
    data_parallel_rank: int | None
    predicted_ids: list[int] = field(default_factory=list)
    embeds: PromptEmbeds | None = None
    kv_transfer: KvTransfer | None = None
    speech_rules: SpeechRules | None = None
    audio_positions: int | None = None
