"""Late interaction: scores a query against a document by the embeddings of their tokens (ColBERT's MaxSim).

Called by scoring.py in a side thread: the products of a long document take milliseconds.
"""

from collections.abc import Iterable

from tetrad.frontend.request.pooling import PooledTensor


def max_sims(pairs: Iterable[tuple[PooledTensor, PooledTensor]]) -> list[float]:
    """Return the score of each pair: for each row of the query the largest dot product with a row of the document, summed.

    Args:
        pairs: float32 matrices of query and document, [tokens of the query, width] and [tokens of the document, width].
    """
    import numpy as np  # here, since only models of late interaction need it: it takes 0.1 s to load

    def rows(pooled: PooledTensor) -> "np.ndarray[tuple[int, ...], np.dtype[np.float32]]":
        return np.frombuffer(pooled.values, dtype=np.float32).reshape(pooled.shape)

    return [float((rows(query) @ rows(document).T).max(axis=1).sum()) for query, document in pairs]
