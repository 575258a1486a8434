"""Drafters of the cuda device: loads a model together with the drafter that speculative_config names.

On several ranks, each has its part of the model and of a draft head; a draft model is whole on every rank. All ranks have the
same hidden states and the same sampled tokens, so they propose the same drafts.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol

from tetrad.services.errors import ModelError
from tetrad.services.log import get_logger
from tetrad.worker_svc.checkpoint.loader import WeightLoader
from tetrad.worker_svc.checkpoint.model_config import read_model_config
from tetrad.worker_svc.core.device import LoadedModel, LoadRequest, Progress
from tetrad.worker_svc.cuda.decoder import KernelDecoder
from tetrad.worker_svc.cuda.device.accelerator import Accelerator
from tetrad.worker_svc.cuda.ranks.heads import share_of
from tetrad.worker_svc.cuda.torch_decoder import TorchDecoder
from tetrad.worker_svc.devices.cuda_drafted import CudaDraftedModel, CudaDrafter, CudaDraftModel
from tetrad.worker_svc.devices.cuda_heads import load_head
from tetrad.worker_svc.devices.cuda_model import CudaModel, whole_model
from tetrad.worker_svc.devices.draft_heads import check_described, open_eagle3, open_mtp, read_eagle3, read_mtp
from tetrad.worker_svc.devices.drafted_model import NOT_DECODERS, check_same_vocabulary, check_sees_all, check_target
from tetrad.worker_svc.families.eagle3 import eagle3_config
from tetrad.worker_svc.layers.collectives import Collectives
from tetrad.worker_svc.layers.parameters import Lookup
from tetrad.worker_svc.layers.vocabulary import SplitLookup
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.models.draft_head import LayerTaps, Tapped

log = get_logger()


class LoadDecoder(Protocol):
    """Loads a decoder of a described family."""

    def __call__(self, request: LoadRequest, report: Progress, *, layers: Tapped | None) -> LoadedModel:
        """Return the model; `layers` chooses the layers whose hidden states a draft head reads."""


class CudaDrafterLoader:
    """Loads models with drafters.

    Args:
        load_model: loads a model without a drafter.
        load_smaller: loads a draft model, all of whose layers stay in device memory.
        load_decoder: loads a target of a draft head.
        accelerator: the device.
        ranks: the ranks that share the target; None: one rank has all of it.
    """

    def __init__(
        self,
        load_model: Callable[[LoadRequest, Progress], LoadedModel],
        load_smaller: Callable[[LoadRequest, Progress], LoadedModel],
        load_decoder: LoadDecoder,
        accelerator: Accelerator,
        ranks: Collectives | None = None,
    ) -> None:
        self._load_model, self._load_smaller, self._load_decoder = load_model, load_smaller, load_decoder
        self._accelerator, self._ranks = accelerator, ranks

    def load(self, request: LoadRequest, report: Progress) -> CudaDraftedModel:
        """Load a model and its drafter; raise ModelError if they do not fit together."""
        alone = replace(request, draft_method="", draft_path=None)
        if request.draft_method == "mtp":
            target, drafter = self._with_mtp(alone, report)
        else:
            assert request.draft_path is not None, "the draft model or the head has files"
            path = request.draft_path
            smaller = LoadRequest(str(path), path, dtype=request.dtype, runner="generate", takes_media=False)
            load = self._with_eagle3 if request.draft_method == "eagle3" else self._with_model
            target, drafter = load(alone, smaller, report)
        log.info("model.drafts", method=request.draft_method, weights_size_bytes=drafter.weights_size_bytes)
        return CudaDraftedModel(target, drafter, self._accelerator)

    def _with_model(self, request: LoadRequest, smaller: LoadRequest, report: Progress) -> tuple[CudaModel, CudaDrafter]:
        """Load a model, and a smaller one beside it."""
        target, drafter = self._load_model(request, report), self._load_smaller(smaller, report)
        if not isinstance(target, CudaModel) or not isinstance(drafter, CudaModel):
            raise ModelError(NOT_DECODERS)
        check_same_vocabulary(target, drafter.info.vocab_size)
        check_target(target)
        check_sees_all("draft model", drafter)
        return target, CudaDraftModel(drafter, request.num_draft_tokens)

    def _with_eagle3(self, request: LoadRequest, head_files: LoadRequest, report: Progress) -> tuple[CudaModel, CudaDrafter]:
        """Load a model, and the EAGLE-3 head that reads hidden states of its layers."""
        facts, chosen = eagle3_config(read_model_config(head_files.path)), list[LayerTaps]()

        def tapped(config: ModelConfig) -> LayerTaps:
            chosen.append(LayerTaps(facts.layers_of(config.num_layers)))
            return chosen[0]

        target = self._described(request, report, tapped)
        decoder, [taps] = target.decoder, chosen
        assert isinstance(decoder, KernelDecoder | TorchDecoder), "a described decoder provides embeddings"
        check_same_vocabulary(target, facts.decoder.vocab_size)
        share = share_of(facts.decoder, self._ranks)
        weights = WeightLoader(share.tensors(open_eagle3(head_files.path), facts.decoder), report)
        read = partial(
            read_eagle3,
            facts,
            weights,
            embed=self._embed_of(target, decoder),
            hidden_size=target.info.hidden_size,
            num_layers=len(taps.layers),
        )
        with whole_model(head_files.model, self._accelerator, weights.total_bytes):
            num_drafts = request.num_draft_tokens
            head = load_head(read, facts.decoder, weights, target, self._accelerator, lambda _: taps.take(), num_drafts, share)
        return target, head

    def _embed_of(self, target: CudaModel, decoder: KernelDecoder | TorchDecoder) -> Lookup:
        """Return the lookup of the target's embeddings, without adapters."""
        return decoder.embed if self._ranks is None else SplitLookup(decoder.embed, target.info.vocab_size, self._ranks)

    def _with_mtp(self, request: LoadRequest, report: Progress) -> tuple[CudaModel, CudaDrafter]:
        """Load a model and its own MTP layer, which predicts further tokens."""
        source, config = open_mtp(request)
        share = share_of(config, self._ranks)
        weights = WeightLoader(share.tensors(source, config), report)
        target = self._described(request, report, None)
        with whole_model(request.model, self._accelerator, weights.total_bytes):
            read, normed = partial(read_mtp, config), target.decoder.normed
            head = load_head(read, config, weights, target, self._accelerator, normed, request.num_draft_tokens, share)
        return target, head

    def _described(self, request: LoadRequest, report: Progress, tapped: Tapped | None) -> CudaModel:
        """Load the target of a head: a decoder of a described family, whose layers have full attention or states."""
        check_described(request)
        target = self._load_decoder(request, report, layers=tapped)
        if not isinstance(target, CudaModel):
            raise ModelError(NOT_DECODERS)
        check_target(target)
        return target
