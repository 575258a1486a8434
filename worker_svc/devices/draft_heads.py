"""Draft heads: reads heads that draft from a model's hidden states, for any device: EAGLE-3, or the model's own MTP layer.

Called by the loaders of drafters (drafters.py, cuda_drafters.py), which give the device's parts. Quantized matrices of an MTP
layer are unpacked.
"""

from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812

from tetrad.services.errors import ModelError
from tetrad.worker_svc.attention.interface import M
from tetrad.worker_svc.checkpoint.directory import DirectorySource
from tetrad.worker_svc.checkpoint.loader import WeightLoader
from tetrad.worker_svc.checkpoint.model_config import apply_overrides, read_model_config
from tetrad.worker_svc.checkpoint.open import open_weights
from tetrad.worker_svc.checkpoint.renamed import RenamedSource
from tetrad.worker_svc.checkpoint.source import WeightSource
from tetrad.worker_svc.core.device import LoadRequest, ModelInfo
from tetrad.worker_svc.families.eagle3 import Eagle3Config
from tetrad.worker_svc.families.encoders import is_encoder
from tetrad.worker_svc.families.registry import find_family, supported_config
from tetrad.worker_svc.families.values import architecture_of
from tetrad.worker_svc.layers.parameters import Lookup
from tetrad.worker_svc.model_facts.config import LayerConfig, ModelConfig
from tetrad.worker_svc.models.draft_head import HeadParts
from tetrad.worker_svc.models.eagle3 import Eagle3Head
from tetrad.worker_svc.models.mtp import LAYER, MtpHead

_EMBEDDINGS = "model.embed_tokens.weight"


def check_described(request: LoadRequest) -> None:
    """Raise ModelError unless a model is a decoder of a described family: only these provide hidden states."""
    if request.path.is_dir():
        config = apply_overrides(read_model_config(request.path), request.hf_overrides_json)
        if is_encoder(config) or find_family(architecture_of(config)) is None:
            raise ModelError(f"speculative_config: {architecture_of(config)[:80]} provides no hidden states.")


def open_eagle3(path: Path) -> WeightSource:
    """Return the tensors of an EAGLE-3 head, by its directory, under canonical names.

    The files call its layer midlayer, newer files layers.0.
    """
    source = DirectorySource(path)
    layer = "midlayer." if source.has("midlayer.hidden_norm.weight") else "layers.0."
    return RenamedSource(source, (("model.layers.0.", layer), ("model.", "")))


@torch.inference_mode()
def read_eagle3(
    facts: Eagle3Config, weights: WeightLoader, parts: HeadParts[M], *, embed: Lookup, hidden_size: int, num_layers: int
) -> Eagle3Head[M]:
    """Return an EAGLE-3 head; raise ModelError if the files do not match the config.

    Args:
        facts: the head's config.
        weights: the tensors of the share.
        parts: the device's parts, with the same tensors.
        embed: the target's embeddings, for heads without their own.
        hidden_size: the target's hidden size.
        num_layers: number of the target's layers whose hidden states the head reads.
    """
    config, parameters, share = facts.decoder, parts.parameters, parts.share
    if weights.has(_EMBEDDINGS):
        table = parameters.embedding(_EMBEDDINGS, share.num_rows(config.vocab_size), config.hidden_size)
        embed = share.lookup(parameters.lookup(_EMBEDDINGS.removesuffix(".weight"), table), config.vocab_size)
    elif config.hidden_size != hidden_size:
        raise ModelError(
            f"The EAGLE-3 head has no embeddings, and its hidden size {config.hidden_size} is not the target's {hidden_size}."
        )
    draft_ids = _draft_ids(weights, facts)
    on_device = None if draft_ids is None else draft_ids.to(parts.device)
    head = Eagle3Head(facts, parts, embed, num_layers * hidden_size, on_device)
    weights.check_all_read(config.architecture, without_effect=("t2d",))  # d2t has the same content
    return head


@torch.inference_mode()
def read_embeddings(request: LoadRequest, info: ModelInfo) -> Lookup:
    """Return the lookup [T] -> [T, hidden] float32 of a model's embeddings, read from its files."""
    weights = WeightLoader(open_weights(request), lambda *_: None)
    table = weights.get(_EMBEDDINGS, (info.vocab_size, info.hidden_size))
    return lambda token_ids: F.embedding(token_ids, table)


def open_mtp(request: LoadRequest) -> tuple[WeightSource, ModelConfig]:
    """Return the tensors of a model's first MTP layer, and its description; raise ModelError if the model has none."""
    if request.random_weights:
        raise ModelError("speculative_config.method 'mtp' needs the model's files; random weights have no such layer.")
    source = open_weights(request)
    values = apply_overrides(source.config, request.hf_overrides_json)
    config = supported_config(values)
    prefix, like = f"model.layers.{config.num_layers}", [layer for layer in config.layers if _has_attention_alone(layer)]
    if not source.has(f"{prefix}.eh_proj.weight") or not like:
        raise ModelError(
            f"speculative_config.method 'mtp': {request.model} has no layer that predicts further tokens; a model of DeepSeek "
            "V3's or GLM-4.5's shape with num_nextn_predict_layers has, one of Qwen3-Next's shape with tensors mtp.*, and a "
            "GGUF file of them with tensors nextn.*."
        )
    renamed = RenamedSource(source, ((f"{LAYER}.", f"{prefix}."),))
    return renamed, replace(config, layers=tuple(like[-1:]))


def _has_attention_alone(layer: LayerConfig) -> bool:
    return layer.has_attention and layer.state is None


@torch.inference_mode()
def read_mtp(config: ModelConfig, parts: HeadParts[M]) -> MtpHead[M]:
    """Return an MTP head from its description and the device's parts."""
    return MtpHead(config, parts)


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
