"""Decodes the messages in which a worker describes itself and its model."""

from tetrad.engine_core_svc.core.media import Modality
from tetrad.engine_core_svc.core.pooling import PoolingFacts
from tetrad.engine_core_svc.worker.group import WorkerFacts
from tetrad.engine_core_svc.worker.rank_link import Info
from tetrad.services.message_size import DEFAULT_MAX_MESSAGE_BYTES
from tetrad.v1 import types_pb2, worker_pb2


def decode_facts(info: Info, model: worker_pb2.ModelInfo, *, max_message_bytes: int) -> WorkerFacts:
    """Return the facts of a worker and its model; `max_message_bytes`: the engine core's own limit of a message."""
    their_limit = info.max_message_bytes if info.HasField("max_message_bytes") else DEFAULT_MAX_MESSAGE_BYTES
    return WorkerFacts(
        info.device,
        model.dtype,
        model.vocab_size,
        model.max_position_embeddings,
        info.version,
        max_message_bytes=min(max_message_bytes, their_limit),
        weights_dtype=model.weights_dtype,
        pooling=_decode_pooling(model.pooling) if model.HasField("pooling") else None,
        takes_embeddings=types_pb2.CAPABILITY_PROMPT_EMBEDS in info.capabilities,
        hidden_size=model.hidden_size,
        verifies_drafts=types_pb2.CAPABILITY_DRAFT_TOKENS in info.capabilities,
        scores_prompts=types_pb2.CAPABILITY_PROMPT_SCORES in info.capabilities,
        times_tokens=types_pb2.CAPABILITY_TOKEN_TIMES in info.capabilities,
        keeps_states=types_pb2.CAPABILITY_DRAFTS_WITH_STATES in info.capabilities,
        logits_processors=tuple(info.logits_processors),
        modalities=_decode_modalities(model),
        is_encoder_decoder=model.is_encoder_decoder,
        supports_transcription=model.supports_transcription,
        encoded_position_bytes=model.encoded_position_bytes,
    )


def _decode_modalities(model: worker_pb2.ModelInfo) -> tuple[Modality, ...]:
    return tuple(Modality(each.modality, each.max_items, each.max_embeds_per_item, each.is_whole) for each in model.modalities)


def _decode_pooling(message: types_pb2.PoolingInfo) -> PoolingFacts:
    return PoolingFacts(
        tasks=tuple(message.tasks),
        embedding_size=message.embedding_size,
        is_matryoshka=message.is_matryoshka,
        matryoshka_dimensions=tuple(message.matryoshka_dimensions),
        labels=tuple(message.labels),
        is_causal=message.is_causal,
        num_labels=message.num_labels,
        needs_all_tokens=message.needs_all_tokens,
        generates=message.generates,
        chunked_processing=message.chunked_processing,
        max_embed_len=message.max_embed_len,
    )
