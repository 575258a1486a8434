"""Encoder room: divides memory between KV blocks and the encoded items of a model with an encoder and a decoder.

A request of such a model needs both: blocks for its tokens, and its item in the encoder cache while it runs. The same number of
requests shall find room for both.
"""


def items_that_fit(*, available_bytes: int, item_bytes: int, sequence_bytes: int, max_num_seqs: int) -> int:
    """Return the number of encoded items for which there is room, at least 1.

    Args:
        available_bytes: bytes for the blocks and all items but the first one, for which the worker has set memory aside.
        item_bytes: bytes of an item; 0: unknown.
        sequence_bytes: bytes of the blocks of a sequence of the maximum length.
        max_num_seqs: maximum number of requests that run together.
    """
    if not item_bytes:
        return max_num_seqs
    return max(1, min(max_num_seqs, (available_bytes + item_bytes) // (item_bytes + sequence_bytes)))
