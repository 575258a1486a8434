"""MediaLimits: refuses images that the model does not take, or that are too many, before any of them is fetched."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from tetrad.frontend.media.items import ModalityFacts
from tetrad.services.errors import InvalidRequest

_DEFAULT_MOST = 999
"""vLLM's default of the operator's limit."""


class Engine(Protocol):
    """The facts of an engine core that are read here."""

    @property
    def modalities(self) -> tuple[ModalityFacts, ...]:
        """The media that its workers take."""


class Engines(Protocol):
    """The engine cores of a model."""

    @property
    def info(self) -> Engine:
        """The latest facts of the first one."""


class Placed(Protocol):
    """An image, audio clip or video of a request."""

    @property
    def where(self) -> str:
        """The field of the request that has it."""

    @property
    def modality(self) -> str:
        """Which of these it is."""

    @property
    def is_embeds(self) -> bool:
        """Whether it is embeddings that the client has computed."""


class MediaLimits:
    """The limits of one model.

    Args:
        model: name of the model, for errors.
        most: the operator's limits by modality.
        preprocessed: the media that the model's tokenizer preprocesses.
        engines: say which media the workers take.
        takes_embeds: whether clients may send embeddings of media that they have computed themselves.
    """

    def __init__(
        self,
        model: str,
        most: Mapping[str, int],
        preprocessed: Iterable[ModalityFacts],
        engines: Engines,
        *,
        takes_embeds: bool = False,
    ) -> None:
        self._model, self._most, self._takes_embeds = model, most, takes_embeds
        self._preprocessed = {facts.modality: facts for facts in preprocessed}
        self._engines = engines

    @property
    def modalities(self) -> tuple[str, ...]:
        """The modalities that prompts may have: those that both the tokenizer and the engine core take."""
        return tuple(modality for modality in self._preprocessed if self.is_encoded(modality))

    def is_encoded(self, modality: str) -> bool:
        """Return whether the engine core takes preprocessed items of a modality."""
        return any(facts.modality == modality for facts in self._engines.info.modalities)

    def check(
        self, items: Sequence[Placed], *, kwargs: Mapping[str, object], io_kwargs: Mapping[str, object] | None = None
    ) -> None:
        """Raise InvalidRequest for items that the model does not take, or more than its limit or the operator's.

        Args:
            items: the media of one prompt.
            kwargs: settings of the media processor, which need a model that has one.
            io_kwargs: how files are read; they need such a model, too.
        """
        taken = self.modalities
        if (items or kwargs or io_kwargs) and not taken:
            field = items[0].where if items else "mm_processor_kwargs" if kwargs else "media_io_kwargs"
            raise InvalidRequest(f"{self._model} is not a multimodal model", field=field)
        for modality in dict.fromkeys(item.modality for item in items):
            its = [item for item in items if item.modality == modality]
            embedded = [item for item in its if item.is_embeds]
            self._check_embeds(modality, its, embedded)
            # As in vLLM, a limit of 0 means that the encoder is not used: embeddings are taken without it.
            if not embedded or self._most.get(modality) != 0:
                self._check_count(modality, its, taken)

    def _check_count(self, modality: str, items: Sequence[Placed], taken: tuple[str, ...]) -> None:
        of_model = self._limit_of_model(modality) if modality in taken else 0
        most = min(self._most.get(modality, _DEFAULT_MOST), of_model)
        if len(items) > most:
            text = f"At most {most} {modality}(s) may be provided in one prompt."
            if len(items) <= of_model:
                text += " Set `--limit-mm-per-prompt` to increase this limit."
            raise InvalidRequest(text, field=items[int(most)].where)

    def _check_embeds(self, modality: str, items: Sequence[Placed], embedded: Sequence[Placed]) -> None:
        if embedded and not self._takes_embeds:
            text = f"You must set `--enable-mm-embeds` to input `{modality}_embeds`"
            raise InvalidRequest(text, field=embedded[0].where)
        if embedded and len(embedded) < len(items):
            raise InvalidRequest(f"Mixing raw {modality} and embedding inputs is not allowed", field=embedded[0].where)

    def _limit_of_model(self, modality: str) -> float:
        encoded = [facts for facts in self._engines.info.modalities if facts.modality == modality]
        limits = [facts.max_items for facts in (self._preprocessed[modality], *encoded) if facts.max_items]
        return min(limits, default=float("inf"))
