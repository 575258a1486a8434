"""The token ids of the fakes: each byte is a token."""

BOS, EOS, VOCAB_SIZE = 256, 257, 258
BOS_NAME = "<s>"
TEXT = "The quick brown fox jumps over the lazy dog. "


def text_of(ids, errors="replace"):
    return bytes(i for i in ids if i < 256).decode(errors=errors)
