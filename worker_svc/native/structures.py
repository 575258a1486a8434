"""Structures that cross into the C++ kernels, field for field as in src/matrix.h, kv_pages.h and program.cpp."""

import ctypes
from enum import IntEnum

_INT, _LONG, _FLOAT, _POINTER = ctypes.c_int32, ctypes.c_int64, ctypes.c_float, ctypes.c_void_p


class MatrixFields(ctypes.Structure):
    """Weights [rows, columns] and how they lie in memory."""

    _fields_ = (
        ("rows", _LONG),
        ("columns", _LONG),
        ("bits", _INT),
        ("block", _INT),
        ("scale_bytes", _INT),
        ("has_minimum", _INT),
        ("zero", _INT),
        ("paired", _INT),
        ("data", _POINTER),
    )


class KvType(IntEnum):
    """How keys and values are kept."""

    FLOAT32 = 0
    FLOAT16 = 1
    INT8 = 2


class Heads(ctypes.Structure):
    """Shape of a model's attention.

    window 0: all keys; kv_type: of KvType; rotary_dim: how much of a head turns, 0: nothing;
    page_stride: elements from a layer's page to its next one.
    """

    _fields_ = (
        ("num_heads", _INT),
        ("num_kv_heads", _INT),
        ("head_dim", _INT),
        ("block_size", _INT),
        ("window", _INT),
        ("kv_type", _INT),
        ("rotary_dim", _INT),
        ("page_stride", _LONG),
    )


class Operation(ctypes.Structure):
    """One operation of a program."""

    _fields_ = (
        ("kind", _INT),
        ("epilogue", _INT),
        ("source", _INT),
        ("target", _INT),
        ("column", _INT),
        ("quantize", _INT),
        ("layer", _INT),
        ("eps", _FLOAT),
        ("matrix", ctypes.POINTER(MatrixFields)),
        ("first", _POINTER),
        ("second", _POINTER),
    )


class Step(ctypes.Structure):
    """What a step brings."""

    _fields_ = (
        ("num_tokens", _LONG),
        ("num_sequences", _LONG),
        ("token_ids", _POINTER),
        ("slots", _POINTER),
        ("positions", _POINTER),
        ("turns", _POINTER),
        ("pages", _POINTER),
        ("table_stride", _LONG),
        ("first_tokens", _POINTER),
        ("num_computed", _POINTER),
        ("num_scheduled", _POINTER),
        ("cache", _POINTER),
    )
