"""DraftCounts: reads a server's metrics of speculative decoding, which have vLLM's names and any prefix."""

from collections.abc import Sequence
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

_COUNTERS = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
_BY_POSITION = "num_accepted_tokens_per_pos"


@dataclass(frozen=True, slots=True)
class DraftCounts:
    """Counts of speculative decoding since the server's start; all are 0 without speculation.

    Attributes:
        num_drafts: number of drafts, each for one request in one step.
        num_draft_tokens: number of draft tokens.
        num_accepted_tokens: number of accepted draft tokens.
        by_position: number of accepted draft tokens by their position in the draft.
    """

    num_drafts: float = 0
    num_draft_tokens: float = 0
    num_accepted_tokens: float = 0
    by_position: Sequence[float] = ()

    def since(self, before: "DraftCounts") -> "DraftCounts":
        """Return the counts since `before`."""
        known = [*before.by_position, *[0.0] * len(self.by_position)]
        return DraftCounts(
            self.num_drafts - before.num_drafts,
            self.num_draft_tokens - before.num_draft_tokens,
            self.num_accepted_tokens - before.num_accepted_tokens,
            [now - then for now, then in zip(self.by_position, known, strict=False)],
        )

    def figures(self) -> dict[str, float]:
        """Return name -> figure, with the names of vLLM's `bench serve`; empty without drafts."""
        if not self.num_drafts:
            return {}
        return {
            "spec_decode_acceptance_rate": 100 * self.num_accepted_tokens / self.num_draft_tokens,
            "spec_decode_acceptance_length": 1 + self.num_accepted_tokens / self.num_drafts,
            "spec_decode_num_drafts": self.num_drafts,
            "spec_decode_draft_tokens": self.num_draft_tokens,
            "spec_decode_accepted_tokens": self.num_accepted_tokens,
        } | {f"spec_decode_acceptance_at_{place}": 100 * each / self.num_drafts for place, each in enumerate(self.by_position)}


def read_draft_counts(text: str) -> DraftCounts:
    """Return the counts in a server's metrics, summed over its models."""
    counts: dict[str, float] = dict.fromkeys(_COUNTERS, 0.0)
    by_position: dict[int, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name.rpartition(":spec_decode_")[2].removesuffix("_total")
            if name in counts:
                counts[name] += sample.value
            elif name == _BY_POSITION:
                place = int(sample.labels["position"])
                by_position[place] = by_position.get(place, 0.0) + sample.value
    places = range(max(by_position, default=-1) + 1)
    return DraftCounts(**counts, by_position=[by_position.get(place, 0.0) for place in places])
