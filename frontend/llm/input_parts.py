"""InputParts: splits the inputs of a pooling request into parts that fit the model, and joins the answers of an input's parts.

Made by the pooling intake. An input that fits the model's context is one part. Longer inputs are embedded only: their answer is
the mean of the embeddings of their parts, weighted by tokens, as in vLLM's chunked processing.
"""

from array import array
from collections import Counter
from collections.abc import Sequence

from tetrad.frontend.request.pooling import PooledTensor, PoolingParams, PoolingRequestOutput

_UNIT_TOLERANCE = 1e-2
"""Largest difference from 1 of the length of an embedding that counts as normalised: allows for rounding to bfloat16."""


class InputParts:
    """The parts of one request.

    Args:
        inputs: the token ids of each input.
        params: the parameters of each input.
        size: maximum number of tokens of a part.

    Attributes:
        prompts: the token ids of all parts, in order.
        params: the parameters of all parts.
        owners: for each part the index of its input.
    """

    def __init__(self, inputs: Sequence[list[int]], params: Sequence[PoolingParams], size: int) -> None:
        self._inputs, self._input_params = inputs, params
        self.prompts = [ids[first : first + size] for ids in inputs for first in range(0, len(ids), size)]
        self.owners = [place for place, ids in enumerate(inputs) for _ in range(0, len(ids), size)]
        self.params = [params[owner] for owner in self.owners]
        self._unanswered = Counter(self.owners)

    def note_answer(self, part: int) -> bool:
        """Count the answer of a part; return whether its input has all answers now."""
        owner = self.owners[part]
        self._unanswered[owner] -= 1
        return not self._unanswered[owner]

    def joined(self, answers: Sequence[PoolingRequestOutput]) -> list[PoolingRequestOutput]:
        """Return the answer of each input; `answers` are the answers of all parts, in order."""
        if len(answers) == len(self._inputs):
            return list(answers)
        found: list[list[PoolingRequestOutput]] = [[] for _ in self._inputs]
        for owner, answer in zip(self.owners, answers, strict=True):
            found[owner].append(answer)
        every = zip(found, self._inputs, self._input_params, strict=True)
        return [parts[0] if len(parts) == 1 else _joined(parts, ids, params) for parts, ids, params in every]


def _joined(parts: Sequence[PoolingRequestOutput], ids: list[int], params: PoolingParams) -> PoolingRequestOutput:
    import numpy as np  # here, since only embeddings of long inputs need it: it takes 0.1 s to load

    vectors = np.array([np.frombuffer(part.outputs.values, np.float32) for part in parts])
    sizes = np.array([len(part.prompt_token_ids) for part in parts], np.float32)
    mean = sizes @ vectors / sizes.sum()
    lengths = np.linalg.norm(vectors, axis=1)
    if params.use_activation is not False and np.allclose(lengths, 1, rtol=_UNIT_TOLERANCE):
        mean /= np.linalg.norm(mean)
    values = array("f", mean.astype(np.float32).tobytes())
    num_cached_tokens = sum(part.num_cached_tokens for part in parts)
    return PoolingRequestOutput(parts[0].request_id, PooledTensor((len(values),), values), ids, num_cached_tokens)
