"""KvTransfer: reads and writes vLLM's JSON object kv_transfer_params: whether KV blocks are kept or read, and where.

A router sends a prompt to one engine core with `do_remote_decode`, and gives the object that this one returns to another one,
which reads the blocks instead of computing them. This file only converts and checks; it knows no engine cores.
"""

import json
import reprlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from tetrad.services.errors import InvalidRequest
from tetrad.services.rpc.columns import pack_u32, unpack_u32

KV_TRANSFER_PARAMS = "kv_transfer_params"
"""Name of the object in requests, in answers, in SamplingParams.extra_args and in errors."""

FIELD_OF_ENGINE_CORES = "kv_transfer"
"""Its name in the errors of engine cores."""

_MAX_U32 = 2**32 - 1
_MAX_U64 = 2**64 - 1
_MAX_EXACT = 2**53
"""Larger integers may have been rounded by a JSON reader that has only floats of 64 bits."""
_MAX_SHOWN = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class KvTransfer:
    """The object's values, with vLLM's names; 0 and empty: not given.

    Attributes:
        do_remote_decode: keep the prompt's blocks until another engine core has read them.
        do_remote_prefill: read the prompt's blocks from the engine core that the other values name.
        remote_engine_id: id of the engine core that holds the blocks.
        remote_request_id: id of the request there.
        remote_host, remote_port: the address at which it sends blocks.
        remote_block_ids: one u32 column of block ids per KV cache group.
        tp_size, pp_size: numbers of its ranks.
        remote_num_tokens: number of tokens in the blocks.
        lease_id: number of the hold on the blocks; text in JSON, because it has 64 bits.
        transfer_mode: "pull" or "push"; empty: pull.
        extra_json: the keys that are none of these, as a JSON object; empty: none.
    """

    do_remote_decode: bool = False
    do_remote_prefill: bool = False
    remote_engine_id: str = ""
    remote_request_id: str = ""
    remote_host: str = ""
    remote_port: int = 0
    remote_block_ids: tuple[bytes, ...] = ()
    tp_size: int = 0
    pp_size: int = 0
    remote_num_tokens: int = 0
    lease_id: int = 0
    transfer_mode: str = ""
    extra_json: str = ""

    @classmethod
    def of(cls, value: object) -> Self | None:
        """Return the transfer in a caller's object; None for one that asks for nothing, such as null or {}.

        Raises:
            InvalidRequest: the value is no object, or a key has a value of another type; the message names the key.
        """
        if value is None:
            return None
        if not isinstance(value, dict):
            raise InvalidRequest(f"{KV_TRANSFER_PARAMS} must be an object, got {value!r:.64}.", field=KV_TRANSFER_PARAMS)
        given = {name: each for name, each in value.items() if each is not None and name in _READERS}
        fields = {name: _READERS[name](name, each) for name, each in given.items()}
        others = {name: each for name, each in value.items() if name not in _READERS}
        transfer = cls(**fields, extra_json=_extra_json(others) if others else "")
        if transfer.do_remote_decode and transfer.do_remote_prefill:
            text = f"{KV_TRANSFER_PARAMS} has both do_remote_decode and do_remote_prefill; an engine core does one of them."
            raise InvalidRequest(text, field=KV_TRANSFER_PARAMS)
        asks = transfer.do_remote_decode or transfer.do_remote_prefill or any(each is not None for each in others.values())
        return transfer if asks else None

    def to_json(self) -> dict[str, Any]:
        """Return the caller's object; `of` returns an equal transfer for it."""
        found: dict[str, Any] = {name: getattr(self, name) for name in _READERS}
        found["remote_block_ids"] = [unpack_u32(column) for column in self.remote_block_ids]
        found["lease_id"] = str(self.lease_id)
        return (json.loads(self.extra_json) if self.extra_json else {}) | found


def _wrong(name: str, kind: str, value: object) -> InvalidRequest:
    shown = reprlib.repr(value)[:_MAX_SHOWN]  # a deep value has no repr of its own
    return InvalidRequest(f"{KV_TRANSFER_PARAMS}.{name} must be {kind}, got {shown}.", field=KV_TRANSFER_PARAMS)


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise _wrong(name, "true or false", value)
    return value


def _text(name: str, value: object) -> str:
    try:
        if isinstance(value, str) and value.encode() is not None:
            return value
    except UnicodeEncodeError:
        raise _wrong(name, "valid text without lone surrogates", value) from None
    raise _wrong(name, "a string", value)


def _number(name: str, value: object, most: int = _MAX_U32) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise _wrong(name, f"an integer in [0, {most}]", value)
    return value


def _port(name: str, value: object) -> int:
    return _number(name, value, 65535)


def _lease(name: str, value: object) -> int:
    is_text = isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= len(str(_MAX_U64))
    number = int(value) if is_text and isinstance(value, str) else value
    most = _MAX_U64 if is_text else _MAX_EXACT
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= most:
        raise _wrong(name, f"digits as a string, or an integer in [0, {_MAX_EXACT}]", value)
    return number


def _mode(name: str, value: object) -> str:
    if value not in ("pull", "push", ""):
        raise _wrong(name, '"pull" or "push"', value)
    return str(value)


def _columns(name: str, value: object) -> tuple[bytes, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(group, list | tuple) for group in value):
        raise _wrong(name, "a list of lists of block ids, one for each KV cache group", value)
    for each in (number for group in value for number in group):
        if type(each) is not int or not 0 <= each <= _MAX_U32:
            raise _wrong(name, f"a list of lists of integers in [0, {_MAX_U32}]", each)
    return tuple(pack_u32(list(group)) for group in value)


def _extra_json(others: dict[Any, Any]) -> str:
    for name, value in others.items():
        try:
            json.dumps({name: value}, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError):
            raise _wrong(str(name), "a value that JSON can represent", value) from None
    return json.dumps(others)


_READERS: dict[str, Callable[[str, object], Any]] = {
    "do_remote_decode": _flag,
    "do_remote_prefill": _flag,
    "remote_engine_id": _text,
    "remote_request_id": _text,
    "remote_host": _text,
    "remote_port": _port,
    "remote_block_ids": _columns,
    "tp_size": _number,
    "pp_size": _number,
    "remote_num_tokens": _number,
    "lease_id": _lease,
    "transfer_mode": _mode,
}
