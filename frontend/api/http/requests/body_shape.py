"""Body shape: counts the objects and values of a JSON body before the parser builds them.

Text is fast to parse at any size; a million small objects block the event loop for seconds. Counting bracket and comma bytes
takes milliseconds. If text contains such bytes, too, the body is scanned in small steps between which other tasks run. Knows
strings and brackets only: the parser checks validity.
"""

import asyncio
import re
import time

from tetrad.services.errors import InvalidRequest

# A part of a string's content; with possessive quantifiers, so that no input causes backtracking.
_INSIDE = re.compile(rb"(?:[^\"\\]{1,4096}+|\\.){0,16}+", re.DOTALL)
_TURN_S = 0.003


async def check_shape(body: bytes, *, max_objects: int, max_values: int) -> None:
    """Raise InvalidRequest for a body that is expensive to parse.

    Args:
        body: the body; it may be invalid JSON.
        max_objects: maximum number of objects and lists.
        max_values: maximum number of values in them.
    """
    if body.count(b"{") + body.count(b"[") <= max_objects and body.count(b",") <= max_values:
        return
    num_objects, num_values, pos = 0, 1, 0
    turn_ends = time.monotonic() + _TURN_S
    while pos < len(body):
        quote = body.find(b'"', pos)
        end = len(body) if quote < 0 else quote
        num_objects += body.count(b"{", pos, end) + body.count(b"[", pos, end)
        num_values += body.count(b",", pos, end)
        if num_objects > max_objects:
            raise InvalidRequest(f"The body holds more than {max_objects} objects and lists, the most that are taken.")
        if num_values > max_values:
            raise InvalidRequest(f"The body holds more than {max_values} values, the most that are taken.")
        pos = end + 1
        while pos < len(body) and body[pos] != ord('"'):
            inside = _INSIDE.match(body, pos)
            if inside is None or inside.end() == pos:
                return  # the body ends inside a string
            pos = inside.end()
            if time.monotonic() > turn_ends:
                await asyncio.sleep(0)
                turn_ends = time.monotonic() + _TURN_S
        pos += 1
        if time.monotonic() > turn_ends:
            await asyncio.sleep(0)
            turn_ends = time.monotonic() + _TURN_S
