"""Structures that are passed to the C++ kernels; the fields are the same as in the headers of src."""

import ctypes
from enum import IntEnum

_INT, _LONG, _FLOAT, _POINTER = ctypes.c_int32, ctypes.c_int64, ctypes.c_float, ctypes.c_void_p


class MatrixFields(ctypes.Structure):
    """A matrix of weights [rows, columns]: its format and its memory."""

    _fields_ = (
        ("rows", _LONG),
        ("columns", _LONG),
        ("bits", _INT),
        ("is_bfloat", _INT),
        ("block", _INT),
        ("scale_bytes", _INT),
        ("has_minimum", _INT),
        ("zero", _INT),
        ("is_coded", _INT),
        ("table", ctypes.c_uint8 * 16),
        ("paired", _INT),
        ("storage", _INT),
        ("data", _POINTER),
    )


class Storage(IntEnum):
    """The storage of a matrix of floats, as in matrix.h."""

    PLAIN = 0
    SPLIT = 1
    FIXED = 2
    PAIRS = 3


class KvType(IntEnum):
    """The layout of keys and values."""

    FLOAT32 = 0
    FLOAT16 = 1
    INT8 = 2


class HeadNorms(IntEnum):
    """The span of the norms of queries and keys: no norms, each head's dimensions, or all heads together."""

    NONE = 0
    EACH_HEAD = 1
    ALL_HEADS = 2


class Heads(ctypes.Structure):
    """Shape of a model's attention.

    window: that of the current layer, set by the program; kv_type: a KvType; rotary_dim: rotated dimensions of a head, 0: none;
    scale: factor of the products of queries and keys, 0: 1 / sqrt(head_dim); softcap: bound of scores, 0: none; page_stride:
    elements from a layer's page to its page in the next block; sinks, slopes: those of the current layer, set by the
    program.
    """

    _fields_ = (
        ("num_heads", _INT),
        ("num_kv_heads", _INT),
        ("head_dim", _INT),
        ("block_size", _INT),
        ("window", _INT),
        ("kv_type", _INT),
        ("rotary_dim", _INT),
        ("scale", _FLOAT),
        ("softcap", _FLOAT),
        ("page_stride", _LONG),
        ("sinks", _POINTER),
        ("slopes", _POINTER),
    )


class Routing(ctypes.Structure):
    """The parameters by which a layer chooses experts."""

    _fields_ = (
        ("router", _INT),
        ("num_experts", _INT),
        ("num_chosen", _INT),
        ("num_groups", _INT),
        ("num_chosen_groups", _INT),
        ("is_renormalized", _INT),
        ("scale", _FLOAT),
        ("correction", _POINTER),
        ("counts", _POINTER),
    )


class Operation(ctypes.Structure):
    """One operation of a program."""

    _fields_ = (
        ("kind", _INT),
        ("epilogue", _INT),
        ("source", _INT),
        ("target", _INT),
        ("column", _INT),
        ("is_prepared", _INT),
        ("layer", _INT),
        ("group", _INT),
        ("window", _INT),
        ("activation", _INT),
        ("is_centered", _INT),
        ("head_norms", _INT),
        ("turns", _INT),
        ("eps", _FLOAT),
        ("scale", _FLOAT),
        ("clamp", _FLOAT),
        ("beta", _FLOAT),
        ("period", _FLOAT),
        ("offset", _FLOAT),
        ("matrix", ctypes.POINTER(MatrixFields)),
        ("first", _POINTER),
        ("second", _POINTER),
        ("routing", ctypes.POINTER(Routing)),
        ("is_by_place", _INT),
        ("shared", _INT),
        ("shared_gate", _INT),
        ("site", _INT),
        ("shrunk", _INT),
        ("first_id", _INT),
    )


class LoraPart(ctypes.Structure):
    """The change of one module of a fused product."""

    _fields_ = (("first", _LONG), ("count", _LONG), ("offset", _LONG), ("rank", _LONG), ("b", _POINTER), ("scale", _FLOAT))


class LoraSite(ctypes.Structure):
    """The changes of one product by an adapter."""

    _fields_ = (
        ("rank", _LONG),
        ("num_parts", _LONG),
        ("a", _POINTER),
        ("parts", ctypes.POINTER(LoraPart)),
        ("bits", _INT),
        ("is_bfloat", _INT),
    )


class Step(ctypes.Structure):
    """The inputs of a step."""

    _fields_ = (
        ("num_tokens", _LONG),
        ("num_sequences", _LONG),
        ("token_ids", _POINTER),
        ("slots", _POINTER),
        ("positions", _POINTER),
        ("turns", ctypes.POINTER(_POINTER)),
        ("turn_rows", _POINTER),
        ("pages", _POINTER),
        ("table_stride", _LONG),
        ("first_tokens", _POINTER),
        ("ends", _POINTER),
        ("num_computed", _POINTER),
        ("num_scheduled", _POINTER),
        ("cache", _POINTER),
        ("adapters", _POINTER),
        ("adapter_rank", _LONG),
        ("embeddings", _POINTER),
        ("deep", _POINTER),
        ("add_up", _POINTER),
        ("ranks", _POINTER),
    )


class SharedPlace(ctypes.Structure):
    """A rank's access to memory that the ranks of a machine share; `timeout_s` is the longest wait for another rank."""

    _fields_ = (
        ("memory", _POINTER),
        ("timeout_s", ctypes.c_double),
        ("file", _INT),
        ("rank", _INT),
        ("size", _INT),
    )


class SumStatus(IntEnum):
    """The outcome of an exchange between ranks: success, or the reason of the failure."""

    SUMMED = 0
    RANK_LOST = 1
    TIMED_OUT = 2
    FAILED = 3


AddUp = ctypes.CFUNCTYPE(_INT, _POINTER, ctypes.POINTER(_FLOAT), _LONG)
"""Function (ranks, floats, number of floats) that adds the other ranks' values to the floats; it returns a SumStatus."""
