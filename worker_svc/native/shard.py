"""Native shard: the part of a decoder that one of several ranks has, with the first and the last layer."""

from dataclasses import replace

from tetrad.worker_svc.layers.collectives import Collectives
from tetrad.worker_svc.layers.vocabulary import SplitOutputs
from tetrad.worker_svc.native.decoder import NativeDecoder


class NativeShard:
    """See models.interface.Model; every rank must call the same methods in the same order.

    Args:
        part: this rank's, with its rows of the vocabulary.
        vocab_size: of the whole model.
        ranks: all of them.
    """

    embedding_size = 0

    def __init__(self, part: NativeDecoder, vocab_size: int, ranks: Collectives) -> None:
        outputs = SplitOutputs(part, vocab_size, ranks)
        self.config = replace(part.config, vocab_size=vocab_size)
        self.kv_cache_spec, self.attention, self.expert_tokens = part.kv_cache_spec, part.attention, part.expert_tokens
        self.forward, self.normed = part.forward, part.normed
        self.logits, self.argmax = outputs.logits, outputs.argmax
