"""Simulated media: a tower that takes the time of a cost model, and makes no embeddings.

Plans are checked as on a real device: an image is encoded before a step has tokens of it. torch is never imported.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tetrad.services.errors import InvalidRequest
from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.media import IMAGE, EncodedItem, Modality, ModelMedia
from tetrad.worker_svc.core.plan import EncoderItem
from tetrad.worker_svc.core.request_table import ScheduledRows
from tetrad.worker_svc.core.step_inputs import order_rows
from tetrad.worker_svc.devices.sim_queue import precise_sleep
from tetrad.worker_svc.families.towers import media_read_by
from tetrad.worker_svc.families.values import architecture_of
from tetrad.worker_svc.media.encoder_cache import EncoderCache
from tetrad.worker_svc.media.slot_media import SlotMedia
from tetrad.worker_svc.model_facts.config import ModelConfig

MOST_EMBEDS = 16_384
"""Assumed largest number of embeddings of an item; only transformers' processors know the model's own."""
_PROCESSORS = ("preprocessor_config.json", "processor_config.json")


class SimTower:
    """See Tower; it runs on the encoder thread.

    Args:
        layers: the description of the text model.
        seconds_per_embedding: time to encode an item, for each of its embeddings.
        names: the kinds of media.
        sleep: waits for the given number of seconds.
    """

    has_own_thread = True
    is_attended = False
    num_parameters, size_bytes, embed_bytes = 0, 0, 0

    def __init__(
        self,
        layers: ModelConfig,
        seconds_per_embedding: float,
        names: Sequence[str] = (IMAGE,),
        sleep: Callable[[float], None] = precise_sleep,
    ) -> None:
        most = min(MOST_EMBEDS, layers.max_position_embeddings)
        self.modalities: tuple[Modality, ...] = tuple(Modality(name, most) for name in names)
        self.uses_mrope, self.num_deep_layers = layers.has_axes, layers.num_deep_layers
        self._seconds, self._sleep = seconds_per_embedding, sleep

    def encode(self, item: EncoderItem) -> EncodedItem:
        """Wait for the simulated time; raise InvalidRequest for an item without tensors."""
        if not item.tensors:
            raise InvalidRequest(f"Media item {item.identifier[:80]} has no tensors.")
        if self._seconds:
            self._sleep(self._seconds * item.num_embeds)
        return EncodedItem(np.empty((item.num_embeds, 0), np.float32))

    def activation_bytes(self, num_embeds: int) -> int:  # noqa: ARG002 - of the protocol
        """Return 0: there is no device."""
        return 0


class SimMedia(SlotMedia):
    """The images of a simulated runner's requests; see StepMedia."""

    def check_encoded(self, batch: InputBatch, rows: ScheduledRows) -> None:
        """Raise InvalidRequest if a step has tokens of an image that is not in the encoder cache."""
        if self._of_slot and len(rows.slots):
            list(self._parts(order_rows(batch, rows.slots, rows.num_computed, rows.num_scheduled)))


def sim_media(
    path: Path, config: Mapping[str, Any], layers: ModelConfig, seconds_per_embedding: float, *, takes_media: bool
) -> ModelMedia | None:
    """Return the simulated tower of a model; None if it takes only text.

    Args:
        path: the model's directory.
        config: content of config.json.
        layers: the description of the text model.
        seconds_per_embedding: see SimTower.
        takes_media: see LoadRequest.
    """
    names = media_read_by(architecture_of(config))
    if not takes_media or not path.is_dir() or not names:
        return None
    if not any((path / name).is_file() for name in _PROCESSORS):
        return None
    return ModelMedia(SimTower(layers, seconds_per_embedding, names), EncoderCache())
