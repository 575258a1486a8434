"""MediaAdapters: the LoRA adapter of requests whose prompt has a kind of media and that name no adapter (default_mm_loras).

As in vLLM, such an adapter has the name of its modality, and a prompt with media of two of them has neither's.
"""

from collections.abc import Collection, Sequence

from tetrad.frontend.llm.adapter_names import AdapterNames
from tetrad.frontend.media.features import MediaFeature
from tetrad.frontend.request.outputs import LoRARequest
from tetrad.services.errors import FailedPrecondition


class MediaAdapters:
    """The adapters of one model's media.

    Args:
        modalities: the modalities that have one.
        names: has the adapters, under the names of their modalities.

    Attributes:
        modalities: as given.
    """

    def __init__(self, modalities: Collection[str], names: AdapterNames) -> None:
        self.modalities, self._names = frozenset(modalities), names

    def of(self, features: Sequence[MediaFeature]) -> LoRARequest | None:
        """Return the adapter of a prompt with these media; None: it has none, or an operator has unloaded it."""
        found = self.modalities.intersection(feature.modality for feature in features) if self.modalities else frozenset()
        if len(found) != 1:
            return None
        [modality] = found
        return self._names.get(modality)

    def check(self, model: str, taken: Sequence[str]) -> None:
        """Raise FailedPrecondition if the model does not take these modalities; `taken` are those that it takes."""
        if self.modalities and not taken:
            raise FailedPrecondition("Default modality-specific LoRA(s) were provided for a non multimodal model.")
        for modality in sorted(self.modalities.difference(taken)):
            text = f"default_mm_loras has an adapter for {modality}, which {model} does not read; it reads {', '.join(taken)}."
            raise FailedPrecondition(text)
