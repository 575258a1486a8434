"""Native shard: the part of a decoder on one of several ranks, from the embeddings to the output head."""

from dataclasses import replace

from tetrad.worker_svc.layers.collectives import Collectives
from tetrad.worker_svc.layers.vocabulary import SplitOutputs
from tetrad.worker_svc.native.decoder import NativeDecoder


class NativeShard:
    """A shard of a decoder; see models.interface.Model. Every rank must call the same methods in the same order.

    Args:
        part: this rank's part, with its rows of the vocabulary.
        vocab_size: vocabulary size of the whole model.
        ranks: sums over all ranks.
    """

    embedding_size = 0

    def __init__(self, part: NativeDecoder, vocab_size: int, ranks: Collectives) -> None:
        outputs = SplitOutputs(part, vocab_size, ranks)
        self.config = replace(part.config, vocab_size=vocab_size)
        self.kv_cache_spec, self.attention, self.expert_tokens = part.kv_cache_spec, part.attention, part.expert_tokens
        self.forward, self.normed = part.forward, part.normed
        self.logits, self.argmax = outputs.logits, outputs.argmax
