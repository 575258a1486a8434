"""Draft heads: loads heads that draft from a model's hidden states on the cpu device: EAGLE-3, or the model's own MTP layer.

A head is a Drafter (drafted_model.py). Its weights are float32, and torch runs it.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tetrad.services.errors import ModelError
from tetrad.worker_svc.checkpoint.directory import DirectorySource
from tetrad.worker_svc.checkpoint.loader import WeightLoader
from tetrad.worker_svc.checkpoint.model_config import apply_overrides
from tetrad.worker_svc.checkpoint.open import always, open_weights
from tetrad.worker_svc.checkpoint.renamed import RenamedSource
from tetrad.worker_svc.core.device import KvLayout, LoadRequest, Progress
from tetrad.worker_svc.core.plan import Runner
from tetrad.worker_svc.families.eagle3 import Eagle3Config
from tetrad.worker_svc.families.registry import supported_config
from tetrad.worker_svc.kv_cache.cache import KvCache
from tetrad.worker_svc.layers.linear import PackedLinear, PlainLinear, can_pack
from tetrad.worker_svc.layers.parameters import HostParameters, Lookup
from tetrad.worker_svc.models.draft_head import DraftHead
from tetrad.worker_svc.models.eagle3 import Eagle3Head
from tetrad.worker_svc.models.mtp import LAYER, MtpHead
from tetrad.worker_svc.runner.head_runner import HeadRunner
from tetrad.worker_svc.runner.model_runner import ModelRunner

_FLOAT32_BYTES = 4
_OWN_EMBEDDINGS = "model.embed_tokens.weight"


class HeadDrafter:
    """A Drafter with a draft head; see Drafter.

    Args:
        head: the draft head.
        weights_size_bytes: size of the head's weights.
        states_of: returns the head's input states for the target's last hidden states.
    """

    def __init__(
        self, head: DraftHead[Any], weights_size_bytes: int, states_of: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        self._head, self._states_of = head, states_of
        self.weights_size_bytes, self.kv_cache_spec = weights_size_bytes, head.kv_cache_spec

    def check_layout(self, layout: KvLayout) -> None:
        """Do nothing: a head makes no proposals beyond its largest position."""

    def runner(self, runner: ModelRunner[Any], cache: KvCache) -> Runner:
        """See Drafter."""
        return HeadRunner(runner, self._head, cache, self._states_of)


@torch.inference_mode()
def load_eagle3(
    path: Path, facts: Eagle3Config, report: Progress, *, embed: Lookup, hidden_size: int, num_layers: int
) -> tuple[Eagle3Head, int]:
    """Return an EAGLE-3 head and the bytes of its weights; raise ModelError if the files do not match the config.

    Args:
        path: directory of the head.
        facts: the head's config.
        report: receives the progress.
        embed: the target's embeddings, for heads without their own.
        hidden_size: the target's hidden size.
        num_layers: number of the target's layers whose hidden states the head reads.
    """
    source = _eagle3_source(path)
    weights = WeightLoader(source, report)
    config = facts.decoder
    if weights.has(_OWN_EMBEDDINGS):
        embed = weights.get(_OWN_EMBEDDINGS, (config.vocab_size, config.hidden_size)).__getitem__
    elif config.hidden_size != hidden_size:
        raise ModelError(
            f"The EAGLE-3 head has no embeddings, and its hidden size {config.hidden_size} is not the target's {hidden_size}."
        )
    draft_ids = _draft_ids(weights, facts)
    head = Eagle3Head(facts, _parameters(weights), embed, num_layers * hidden_size, draft_ids)
    weights.check_all_read(config.architecture, without_effect=("t2d",))  # d2t has the same content
    return head, weights.num_parameters * _FLOAT32_BYTES


@torch.inference_mode()
def load_mtp(request: LoadRequest, report: Progress) -> tuple[MtpHead, int]:
    """Return a model's MTP head and the bytes of its weights; raise ModelError if the model has no MTP layer."""
    source = open_weights(request, unpacks=always)
    values = apply_overrides(source.config, request.hf_overrides_json)
    config = supported_config(values)
    prefix = f"model.layers.{config.num_layers}"
    if not values.get("num_nextn_predict_layers") or not source.has(f"{prefix}.eh_proj.weight"):
        raise ModelError(
            f"speculative_config.method 'mtp': {request.model} has no layer that predicts further tokens; a model of DeepSeek "
            "V3's or GLM-4.5's shape with num_nextn_predict_layers has."
        )
    weights = WeightLoader(RenamedSource(source, ((f"{LAYER}.", f"{prefix}."),)), report)
    head = MtpHead(replace(config, layers=config.layers[-1:]), _parameters(weights))
    return head, weights.num_parameters * _FLOAT32_BYTES


def _eagle3_source(path: Path) -> RenamedSource:
    """Return the head's tensors under canonical names: the files call its layer midlayer, newer files layers.0."""
    source = DirectorySource(path)
    layer = "midlayer." if source.has("midlayer.hidden_norm.weight") else "layers.0."
    return RenamedSource(source, (("model.layers.0.", layer), ("model.", "")))


def _draft_ids(weights: WeightLoader, facts: Eagle3Config) -> torch.Tensor | None:
    """Return the target's ids of the head's tokens; None if they are the same. Files store the offset from the head's ids."""
    size = facts.draft_vocab_size
    if not weights.has("d2t"):
        if size < facts.decoder.vocab_size:
            raise ModelError(f"The EAGLE-3 head may propose {size} tokens, but its files have no tensor d2t that names them.")
        return None
    offsets = weights.get_stored("d2t", (size,), dtypes=(torch.int64, torch.int32), num_parameters=0).long()
    ids = offsets + torch.arange(size)
    if int(ids.min()) < 0 or int(ids.max()) >= facts.decoder.vocab_size or len(set(ids.tolist())) < size:
        raise ModelError("The EAGLE-3 head's tensor d2t names tokens twice, or tokens that its vocabulary does not have.")
    return ids


def _parameters(weights: WeightLoader) -> HostParameters:
    return HostParameters(weights, PackedLinear if can_pack() else PlainLinear)
