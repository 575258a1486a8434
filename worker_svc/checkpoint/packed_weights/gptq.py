"""GPTQ checkpoints: Frantar et al., "GPTQ" (2022), in 2, 4 or 8 bits.

The transposed matrix [C, R] is stored with several rows per word: `qweight` [C / p, R] int32 of p = 32 / bits values, lowest
first; `qzeros` [C / G, R / p] int32, unchanged (format "gptq_v2") or with one subtracted from each zero, as one number per
word that wraps around ("gptq"); `scales` [C / G, R]; `g_idx` [C] int32, the group of each input ("desc_act": not in order).
"""

from collections.abc import Mapping
from typing import Any

import torch

from tetrad.services.errors import ModelError
from tetrad.worker_svc.checkpoint.packed_weights.files import FLOATS, StoredTensors, load, load_matrix, number_of_groups
from tetrad.worker_svc.checkpoint.packed_weights.word_matrix import WordMatrix
from tetrad.worker_svc.checkpoint.packed_weights.words import ones, unpack
from tetrad.worker_svc.model_facts.quantization import choose, group_size_of

_INTS = (torch.int32,)


class GptqReader:
    """The Reader of GPTQ checkpoints.

    Args:
        config: the quantization_config.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._bits: int = choose(config, "bits", [2, 4, 8])
        stored = choose(config, "checkpoint_format", ["gptq", "gptq_v2", ""], default="gptq")
        self._zero_offset = 0 if stored == "gptq_v2" else ones(self._bits)
        self._group = group_size_of(config)

    def reads(self, files: StoredTensors, name: str) -> bool:
        """See Reader."""
        return files.has(f"{name}.qweight")

    def read(self, files: StoredTensors, name: str) -> WordMatrix:
        """See Reader."""
        per_word = 32 // self._bits
        words = load_matrix(files, f"{name}.qweight", dtypes=_INTS)
        columns, rows = words.shape[0] * per_word, words.shape[1]
        if rows % per_word:
            raise ModelError(
                f"Tensor {name}.qweight has {rows} rows, but zeros of {self._bits} bits need a multiple of {per_word}."
            )
        count = number_of_groups(f"{name}.qweight", columns, self._group)
        zeros = load(files, f"{name}.qzeros", (count, rows // per_word), dtypes=_INTS)
        scales = load(files, f"{name}.scales", (count, rows), dtypes=FLOATS).T.float()
        zeros = unpack(zeros + self._zero_offset, self._bits).T.contiguous()
        groups = self._groups(files, name, columns, count)
        if groups is not None and torch.equal(groups, torch.arange(columns) // (columns // count)):
            groups = None
        return WordMatrix(self._bits, words.T, scales, zeros, groups=groups)

    def _groups(self, files: StoredTensors, name: str, columns: int, count: int) -> torch.Tensor | None:
        if not files.has(f"{name}.g_idx"):
            return None
        groups = load(files, f"{name}.g_idx", (columns,), dtypes=_INTS).to(torch.int64)
        if int(groups.min()) < 0 or int(groups.max()) >= count:
            raise ModelError(f"Tensor {name}.g_idx names groups that are not there; there are {count}.")
        return groups
