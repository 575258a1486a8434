"""A tokenizer of 268 tokens for random models: 256 bytes, some longer pieces, two EOS, a special token."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

SPECIALS = ["<|end|>", "<|im_end|>", "<|call|>"]
EOS_IDS = (0, 1)


def toy_tokenizer() -> str:
    """Return its tokenizer.json."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("{", '"'), ('"', ":"), ('"', ","), ("t", "r"), ("tr", "u"), ("tru", "e"), ("Ġ", "Ġ"), ("ĠĠ", "ĠĠ"), ("<", "f")]
    pieces = [*alphabet, *("".join(merge) for merge in merges)]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate([*SPECIALS, *pieces])}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIALS)
    return tokenizer.to_str()
