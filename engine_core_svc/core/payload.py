"""WorkerPayload: the part of a request that the worker needs and the engine core only passes on.

Immutable. Wire modules decode and encode the parameters (wire.py); scheduler and KV cache see them as one opaque value.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tetrad.engine_core_svc.core.media import MediaSpan
from tetrad.engine_core_svc.core.prompt_embeds import PromptEmbeds
from tetrad.services.request_context import NO_CONTEXT, RequestContext


class EncodedParams:
    """Encoded parameters of a request for its worker. Requests that share them have the same object, so `is` compares them."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class WorkerPayload:
    """The part of a request for the worker, which the engine core only passes on.

    Attributes:
        params: the encoded parameters; several requests may share one object.
        eos_token_id: the model's end-of-text token; None: it has none.
        context: context of the client's request.
        seed: replaces the seed of the parameters; None: use their seed.
        prompt_embeds: positions of the prompt that are vectors; None: all positions are token ids.
        media: places of the prompt's media, in their order.
    """

    params: EncodedParams
    eos_token_id: int | None = None
    context: RequestContext = NO_CONTEXT
    seed: int | None = None
    prompt_embeds: PromptEmbeds | None = None
    media: Sequence[MediaSpan] = ()


NO_PAYLOAD = WorkerPayload(EncodedParams())
"""The payload of requests that reach no worker."""
