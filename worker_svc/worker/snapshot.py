"""Snapshot: the state of a worker at one moment, for its descriptions and metrics."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from tetrad.worker_svc.core.device import CountsExperts, KvLayout, ModelInfo, NewWeights
from tetrad.worker_svc.core.plan import Ints


class State(Enum):
    """The lifecycle state of a worker."""

    STARTED = 1
    LOADED = 2
    READY = 3
    SLEEPING = 4


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The worker's state at one time; the answer to GetInfo."""

    state: State
    device: str
    model: ModelInfo | None
    layout: KvLayout | None
    num_requests: int
    epoch: int  # epoch of the engine core whose stream is open; 0: no stream
    model_load_s: float  # 0: no model is loaded
    kv_cache_bytes: int
    weights: NewWeights | None = None  # the last finished update; None: the weights are the model's own
    weight_version: str = ""  # name of the weights; empty: they are the model's own
    expert_tokens: Sequence[Ints] = ()  # for each layer with experts, number of tokens of each expert [experts]


def expert_tokens_of(model: object) -> Sequence[Ints]:
    """Return the numbers of tokens of a model's experts, see CountsExperts; () if the model does not count them."""
    return model.expert_tokens if isinstance(model, CountsExperts) else ()
