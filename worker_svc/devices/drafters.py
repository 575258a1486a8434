"""Drafters: loads a model on the cpu device together with the drafter that speculative_config names."""

from collections.abc import Callable
from dataclasses import replace

from tetrad.services.errors import ModelError
from tetrad.services.log import get_logger
from tetrad.worker_svc.checkpoint.loader import WeightLoader
from tetrad.worker_svc.checkpoint.model_config import read_model_config
from tetrad.worker_svc.core.device import LoadedModel, LoadRequest, Progress
from tetrad.worker_svc.devices.cpu_model import CpuModel
from tetrad.worker_svc.devices.draft_heads import (
    check_described,
    open_eagle3,
    open_mtp,
    read_eagle3,
    read_embeddings,
    read_mtp,
)
from tetrad.worker_svc.devices.drafted_model import (
    NOT_DECODERS,
    DraftedModel,
    Drafter,
    DraftModel,
    check_same_vocabulary,
    check_sees_all,
    check_target,
)
from tetrad.worker_svc.devices.host_heads import HeadDrafter, host_parts
from tetrad.worker_svc.families.eagle3 import eagle3_config
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.models.draft_head import LayerTaps, Tapped
from tetrad.worker_svc.models.host import HostDecoder

log = get_logger()


def tapped_for(request: LoadRequest) -> Tapped | None:
    """Return what chooses the layers whose hidden states a stage passes on to the leader's draft head; None: it reads none."""
    if request.draft_method != "eagle3" or request.draft_path is None:
        return None
    facts = eagle3_config(read_model_config(request.draft_path))
    return lambda config: LayerTaps(facts.layers_of(config.num_layers))


class DrafterLoader:
    """Loads models with drafters. On several ranks, the leader has the whole drafter, and its part of the model.

    Args:
        load_model: loads a model without a drafter, or the leader's part of it.
        load_decoder: the same for a decoder of a described family; a draft head reads hidden states of some layers.
        load_draft_model: loads a whole model.
        is_shard: whether the model is the leader's part of every layer and of the embeddings.
    """

    def __init__(
        self,
        load_model: Callable[[LoadRequest, Progress], LoadedModel],
        load_decoder: Callable[[LoadRequest, Progress, Tapped | None], LoadedModel],
        load_draft_model: Callable[[LoadRequest, Progress], LoadedModel],
        *,
        is_shard: bool = False,
    ) -> None:
        self._load_model, self._load_decoder, self._load_draft_model = load_model, load_decoder, load_draft_model
        self._is_shard = is_shard

    def load(self, request: LoadRequest, report: Progress) -> DraftedModel:
        """Load a model and its drafter; raise ModelError if they do not fit together."""
        alone = replace(request, draft_method="", draft_path=None)
        if request.draft_method == "mtp":
            target, drafter = self._with_mtp(alone, report)
        else:
            assert request.draft_path is not None
            load = self._with_eagle3 if request.draft_method == "eagle3" else self._with_model
            target, drafter = load(
                alone, LoadRequest(str(request.draft_path), request.draft_path, takes_media=False), report
            )  # as stored
        log.info("model.drafts", method=request.draft_method, weights_size_bytes=drafter.weights_size_bytes)
        return DraftedModel(target, drafter)

    def _with_model(self, request: LoadRequest, smaller: LoadRequest, report: Progress) -> tuple[LoadedModel, Drafter]:
        """Load a model, and a smaller one beside it."""
        target, drafter = self._load_model(request, report), self._load_draft_model(replace(smaller, runner="generate"), report)
        if not isinstance(target, CpuModel) or not isinstance(drafter, CpuModel) or drafter.host.decoder is None:
            raise ModelError(NOT_DECODERS)
        check_same_vocabulary(target, drafter.info.vocab_size)
        check_target(target)
        check_sees_all("draft model", drafter)
        return target, DraftModel(drafter, drafter.host)

    def _with_eagle3(self, request: LoadRequest, head_files: LoadRequest, report: Progress) -> tuple[LoadedModel, Drafter]:
        """Load a model, and the EAGLE-3 head that reads hidden states of its layers."""
        facts, chosen = eagle3_config(read_model_config(head_files.path)), list[LayerTaps]()

        def tapped(config: ModelConfig) -> LayerTaps:
            chosen.append(LayerTaps(facts.layers_of(config.num_layers)))
            return chosen[0]

        target = self._described(request, report, tapped)
        decoder, [taps] = target.host.decoder, chosen
        assert isinstance(decoder, HostDecoder), "torch alone provides hidden states"
        check_same_vocabulary(target, facts.decoder.vocab_size)
        weights = WeightLoader(open_eagle3(head_files.path), report)
        parts, steps = host_parts(facts.decoder, weights)
        sizes = {"hidden_size": target.info.hidden_size, "num_layers": len(taps.layers)}
        embed = read_embeddings(request, target.info) if self._is_shard else decoder.embed
        head = read_eagle3(facts, weights, parts, embed=embed, **sizes)
        return target, HeadDrafter(head, steps, weights, lambda _: taps.take())

    def _with_mtp(self, request: LoadRequest, report: Progress) -> tuple[LoadedModel, Drafter]:
        """Load a model and its own MTP layer, which predicts further tokens."""
        source, config = open_mtp(request)
        weights = WeightLoader(source, report)
        parts, steps = host_parts(config, weights)
        head = read_mtp(config, parts)
        target = self._described(request, report, None)
        decoder = target.host.decoder
        assert decoder is not None, "a decoder that generates has a program"
        return target, HeadDrafter(head, steps, weights, decoder.normed)

    def _described(self, request: LoadRequest, report: Progress, tapped: Tapped | None) -> CpuModel:
        """Load the target of a head: a decoder of a described family, whose layers have full attention or states."""
        check_described(request)
        target = self._load_decoder(request, report, tapped)
        if not isinstance(target, CpuModel) or target.host.decoder is None:
            raise ModelError(NOT_DECODERS)
        check_target(target)
        return target
