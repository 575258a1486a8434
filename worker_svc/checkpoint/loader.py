"""Weight loader: loads a model's tensors while the model is built; checks shapes, counts bytes and reports progress."""

import math
from collections.abc import Collection, Container

import torch

from tetrad.services.errors import ModelError
from tetrad.worker_svc.checkpoint.packed_weights.grouped import rounded
from tetrad.worker_svc.checkpoint.packed_weights.matrices import Matrix, PackedMatrix, in_groups
from tetrad.worker_svc.checkpoint.source import (
    DOWNLOAD_AGAIN,
    Progress,
    QuantizedMatrix,
    QuantizedTensor,
    StoredMatrix,
    WeightSource,
)
from tetrad.worker_svc.checkpoint.wrapped import WrappedSource
from tetrad.worker_svc.model_facts.config import ModelConfig
from tetrad.worker_svc.model_facts.tensors import tensor_shapes

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
"""Types of weights that are not quantized."""

_MAX_NAMED = 3
_WITHOUT_EFFECT = (
    "rotary_emb.inv_freq",  # computed from the config
    "rope_freqs.weight",  # read with the config
    "lm_head.weight",  # unread only with tied embeddings; every other model reads it
    ".input_scale",  # calibrated for activations, whose scales are measured in each step here
    ".input_zero_point",
    ".input_global_scale",
    ".input_scale_ub",
    ".weight_format",  # written by bitsandbytes
    ".k_scale",  # scales of an fp8 KV cache, which only the CUDA kernel decoder reads
    ".v_scale",
)
"""Ends of the names of tensors that do not change results."""
_OUTPUT_LAYERS = ("output.weight", "embed_out.weight")
"""Names of the output layer in GGUF files and in GPT-NeoX; it is unread if the model pools or embeddings are tied."""


class WeightLoader:
    """Reads tensors from a source, each once.

    Attributes:
        device: device of the tensors: the host.

    Args:
        source: the open files.
        report: called after each tensor with the bytes loaded and the total bytes.
    """

    def __init__(self, source: WeightSource, report: Progress) -> None:
        self._source, self._report = source, report
        self.device = torch.device("cpu")
        self._loaded_bytes = 0
        self.num_parameters = 0

    @property
    def total_bytes(self) -> int:
        """The bytes of all tensors of the files."""
        return self._source.total_bytes

    def has(self, name: str) -> bool:
        """Return whether the model has a tensor with this name."""
        return self._source.has(name)

    def get(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Return a tensor in float32; raise ModelError if it is missing, broken or of another shape."""
        self._check_known(name)
        tensor, stored_bytes = self._source.load(name)
        self._check_shape(name, tuple(tensor.shape), shape)
        self._count(tensor.numel(), stored_bytes)
        return tensor

    def get_stored(
        self, name: str, *shapes: tuple[int, ...], dtypes: Collection[torch.dtype] = FLOATS, num_parameters: int | None = None
    ) -> torch.Tensor:
        """Return a tensor in its stored type; raise ModelError if it is missing, broken, or of another shape or type.

        Args:
            name: name of the tensor.
            shapes: the allowed shapes.
            dtypes: the allowed types.
            num_parameters: number of parameters in the tensor; None: one per value.

        Returns:
            The tensor, possibly in the mapped file's memory: the caller must copy it and not change it.
        """
        self._check_known(name)
        tensor = self._source.load_stored(name)
        self._check_shape(name, tuple(tensor.shape), *shapes)
        if tensor.dtype not in dtypes:
            expected = " or ".join(_name_of(dtype) for dtype in dtypes)
            raise ModelError(f"Tensor {name} is of type {_name_of(tensor.dtype)}, but the config asks for {expected}.")
        self._count(tensor.numel() if num_parameters is None else num_parameters, tensor.nbytes)
        return tensor

    def get_rows(self, name: str, shape: tuple[int, int]) -> tuple[torch.Tensor, slice]:
        """Return the whole rows of a float matrix in its stored type, and the columns of the model's part.

        Args:
            name, shape: see get_stored; the shape is that of the part.
        """
        part = self.get_stored(name, shape)
        whole = self._source.whole_rows(name) if isinstance(self._source, WrappedSource) else None
        return (part, slice(None)) if whole is None else whole

    @property
    def loaded_bytes(self) -> int:
        """The stored size of all loaded tensors in bytes."""
        return self._loaded_bytes

    @property
    def are_packed(self) -> bool:
        """Whether the checkpoint is quantized."""
        return self._source.config.get("quantization_config") is not None

    def get_scalar(self, name: str) -> float:
        """Return a tensor of one value; raise ModelError if it has more values, or the value is not above 0."""
        value = self.get_stored(name, (), (1,)).float().item()
        if not 0 < value < math.inf:
            raise ModelError(f"Tensor {name} is {value}, but it must be above 0.")
        return value

    def get_quantized(self, name: str, shape: tuple[int, int], kinds: Container[int]) -> QuantizedMatrix | None:
        """Return a matrix as stored; None if it is in floats, or in a GGUF type that is not in `kinds`.

        A matrix in fp8, or without contiguous groups, is rounded to 8 bits.
        """
        matrix, stored_bytes = self._quantized(name)
        if isinstance(matrix, QuantizedTensor):
            quantized: QuantizedMatrix | None = matrix if matrix.kind in kinds else None
        else:
            quantized = in_groups(matrix) if isinstance(matrix, Matrix) else None
        self._count_matrix(name, quantized, shape, stored_bytes)
        return quantized

    def get_packed(self, name: str, shape: tuple[int, int]) -> PackedMatrix | None:
        """Return a matrix of few bits as stored; None if it is in floats, or in a GGUF file.

        A float32 matrix, from a format without groups of columns, is rounded to 8 bits.
        """
        matrix, stored_bytes = self._quantized(name)
        found = rounded(matrix) if isinstance(matrix, torch.Tensor) else matrix
        packed = found if isinstance(found, PackedMatrix) else None
        self._count_matrix(name, packed, shape, stored_bytes)
        return packed

    def check_complete(self, config: ModelConfig) -> None:
        """Raise ModelError if the files lack a bias, or contain a tensor that the model has not read.

        Examples are adapters that were not merged, attention sinks, or the experts of another architecture.
        """
        for name in tensor_shapes(config):
            if name.endswith(".bias"):
                self._check_known(name)
        self.check_all_read(config.architecture)

    def check_all_read(self, architecture: str, *, without_effect: Collection[str] = ()) -> None:
        """Raise ModelError if the files contain a tensor that the model has not read and that would change its results.

        Tensors whose names contain one of `without_effect` may stay unread.
        """
        unread = [
            name
            for name in self._source.unread()
            if not (name.endswith(_WITHOUT_EFFECT) or name in _OUTPUT_LAYERS or any(part in name for part in without_effect))
        ]
        if unread:
            shown = ", ".join(name[:100] for name in unread[:_MAX_NAMED])
            more = f" and {len(unread) - _MAX_NAMED} more" if len(unread) > _MAX_NAMED else ""
            raise ModelError(
                f"The model's files have tensors that {architecture} does not use here: {shown}{more}. "
                "Merge adapters into the weights first; other variants of the architecture are not supported."
            )

    def _quantized(self, name: str) -> tuple[StoredMatrix | None, int]:
        self._check_known(name)
        return self._source.load_quantized(name) or (None, 0)

    def _count_matrix(
        self, name: str, matrix: QuantizedMatrix | PackedMatrix | None, shape: tuple[int, int], stored_bytes: int
    ) -> None:
        if matrix is not None:
            self._check_shape(name, matrix.shape, shape)
            self._count(shape[0] * shape[1], stored_bytes)

    def _check_known(self, name: str) -> None:
        if not self._source.has(name):
            packed = f"{name.removesuffix('weight')}qweight"
            if name.endswith(".weight") and self._source.has(packed):
                raise ModelError(
                    f"The model's files have {packed}: it is quantized as AWQ or GPTQ, which needs a quantization_config in "
                    "config.json."
                )
            raise ModelError(f"The model's files have no tensor {name}. {DOWNLOAD_AGAIN}")

    def _check_shape(self, name: str, shape: tuple[int, ...], *expected: tuple[int, ...]) -> None:
        if shape not in expected:
            asked = " or ".join(str(each) for each in expected)
            raise ModelError(f"Tensor {name} has shape {shape}, but the config asks for {asked}. {DOWNLOAD_AGAIN}")

    def _count(self, num_parameters: int, stored_bytes: int) -> None:
        self._loaded_bytes += stored_bytes
        self.num_parameters += num_parameters
        self._report(self._loaded_bytes, self._source.total_bytes)


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
