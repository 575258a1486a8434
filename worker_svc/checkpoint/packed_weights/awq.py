"""AWQ checkpoints: Lin et al., "AWQ: Activation-aware Weight Quantization" (2023), as AutoAWQ's version "gemm" stores them.

The transposed matrix [C, R] is stored in 4 bits, eight columns per word, shuffled: `qweight` [C, R / 8] int32, `qzeros`
[C / G, R / 8] int32, `scales` [C / G, R]; w = (q - zero) * scale.
"""

from collections.abc import Mapping
from typing import Any

import torch

from tetrad.worker_svc.checkpoint.packed_weights.files import FLOATS, StoredTensors, load, load_matrix, number_of_groups
from tetrad.worker_svc.checkpoint.packed_weights.word_matrix import WordMatrix
from tetrad.worker_svc.checkpoint.packed_weights.words import unpack
from tetrad.worker_svc.model_facts.quantization import choose, group_size_of

_INTS = (torch.int32,)
_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Places of eight columns in a word."""


class AwqReader:
    """The Reader of AWQ checkpoints.

    Args:
        config: the quantization_config.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        choose(config, "bits", [4])
        choose(config, "version", ["gemm", "GEMM"], default="gemm")
        choose(config, "zero_point", [True], default=True)
        self._group = group_size_of(config)

    def reads(self, files: StoredTensors, name: str) -> bool:
        """See Reader."""
        return files.has(f"{name}.qweight")

    def read(self, files: StoredTensors, name: str) -> WordMatrix:
        """See Reader."""
        words = load_matrix(files, f"{name}.qweight", dtypes=_INTS)
        columns, num_words = words.shape
        count = number_of_groups(f"{name}.qweight", columns, self._group)
        zeros = load(files, f"{name}.qzeros", (count, num_words), dtypes=_INTS)
        scales = load(files, f"{name}.scales", (count, 8 * num_words), dtypes=FLOATS)
        zeros = unpack(zeros, 4, _PLACES).T.contiguous()
        return WordMatrix(4, words.T, scales.T.float(), zeros, holds_rows=True, places=_PLACES)
