"""Audio bytes: converts audio of a program, which has its samples, to the file that the tokenizer service reads.

Takes arrays, tensors and lists of samples, also with their rate, without importing numpy or torch; bytes of an audio file are
passed on as they are. Called by media_prompts.py.
"""

import array
import sys
from typing import Any

from tetrad.services.errors import InvalidRequest
from tetrad.services.models.audio_samples import join_samples

_FIELD = "multi_modal_data"
_PAIR = 2
_MAX_CHANNELS = 64
_FLOATS = ("float16", "float32", "float64")
_LARGEST_INT16 = 32768.0


def audio_items(items: Any) -> list[Any]:
    """Return the audios of a prompt, as one audio or a list of them, in vLLM's forms.

    A list of numbers is one audio, and so is a pair of samples and a rate.
    """
    if not isinstance(items, list) or (items and all(isinstance(item, int | float) for item in items)):
        return [items]
    return list(items)


def audio_bytes(audio: Any, where: str) -> bytes:
    """Return the file of an audio; InvalidRequest, which names `where`, for a value that is none.

    Args:
        audio: an array or tensor [N], or of several channels [channels, N] or [N, channels], of floats or int16; a list of
            floats; a pair of one of these and the number of samples of a second; or the content of an audio file. Without a
            number, it is the model's.
        where: the name of the value.
    """
    if isinstance(audio, bytes | bytearray | memoryview):
        return bytes(audio)
    rate = 0
    if isinstance(audio, tuple) and len(audio) == _PAIR:
        audio, given = audio
        rate = _rate(given, where)
    if isinstance(audio, list | tuple):
        return join_samples(_of_list(audio, where), rate)
    if hasattr(audio, "detach"):  # a torch tensor
        audio = audio.detach().cpu().float().numpy()
    if hasattr(audio, "__array_interface__") and hasattr(audio, "shape"):
        return join_samples(_of_array(audio, where), rate)
    text = "an array of samples, a list of them, a pair of these and the sampling rate, or the bytes of an audio file"
    raise InvalidRequest(f"{where} must be {text}, got {type(audio).__name__}.", field=_FIELD)


def _rate(value: Any, where: str) -> int:
    number = float(value) if isinstance(value, int | float) or hasattr(value, "__float__") else 0.0
    if not 1 <= number <= 2**31 or number != int(number):
        raise InvalidRequest(
            f"{where} has the sampling rate {value!r:.64}; it must be a whole number, at least 1.", field=_FIELD
        )
    return int(number)


def _of_list(values: Any, where: str) -> bytes:
    try:
        samples = array.array("f", values)
    except TypeError as error:
        raise InvalidRequest(f"{where} must be a list of floats: {error}.", field=_FIELD) from error
    if sys.byteorder == "big":
        samples.byteswap()
    return samples.tobytes()


def _of_array(values: Any, where: str) -> bytes:
    shape = tuple(values.shape)
    if values.dtype == "int16":
        values = values / _LARGEST_INT16
    elif values.dtype not in _FLOATS:
        text = f"{where} has the dtype {values.dtype}: samples are floats from -1 to 1, or int16."
        raise InvalidRequest(text, field=_FIELD)
    if len(shape) == _PAIR and min(shape) <= _MAX_CHANNELS:
        values = values.mean(axis=0 if shape[0] <= shape[1] else 1)
    elif len(shape) != 1:
        text = f"{where} has the shape {list(shape)}: audio is [N], or of at most {_MAX_CHANNELS} channels [channels, N]."
        raise InvalidRequest(text, field=_FIELD)
    samples: bytes = values.astype("<f4").tobytes()
    return samples
