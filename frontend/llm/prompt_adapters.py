"""PromptAdapters: reads and keeps prompt adapters (PEFT's prompt tuning), whose virtual tokens precede the prompts of requests.

They are named and loaded like LoRA adapters. A virtual token is a row of embeddings, so the request becomes one with prompt
embeddings: the frontend reads the file; engine cores and workers need no support. Files are read on a thread; one event loop.
"""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tetrad.frontend.request.outputs import LoRARequest
from tetrad.frontend.request.prompt_embeds import PromptEmbeds, embeds_of_safetensors
from tetrad.services.errors import AlreadyExists, FailedPrecondition, InvalidRequest, ModelError, NotFound

_CONFIG, _WEIGHTS, _TENSOR = "adapter_config.json", "adapter_model.safetensors", "prompt_embeddings"
_MOST_KEPT = 256
"""Maximum number of adapters in memory; the least recently used are evicted, and read again when they are needed."""


@dataclass(slots=True, eq=False)
class _Known:
    """An adapter and its virtual tokens; `rows` is None if it is not a prompt adapter."""

    lora: LoRARequest
    rows: PromptEmbeds | None
    is_pinned: bool = False


class PromptAdapters:
    """The prompt adapters of one frontend. The engine cores handle all other adapters."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}  # by number, the least recently used first

    def __iter__(self) -> Iterator[LoRARequest]:
        """Iterate over the prompt adapters in memory."""
        return (each.lora for each in self._known.values() if each.rows is not None)

    async def rows_of(self, lora: LoRARequest | None) -> PromptEmbeds | None:
        """Return the virtual tokens of a request's adapter, after reading it if necessary; None: it is not a prompt adapter.

        Raises:
            InvalidRequest: another adapter has its number.
            ModelError: the adapter cannot be used.
        """
        if lora is None:
            return None
        known = self._known.get(lora.lora_int_id)
        if known is None or (known.rows is None and not _is_same(known.lora, lora)):
            return await self._read(lora)
        if known.rows is not None and not _is_same(known.lora, lora):
            raise InvalidRequest(
                f"{_described(known)}, not {lora.lora_name!r} at {lora.lora_path}; unload it, or load the other one in its "
                "place (load_inplace).",
                field="lora_request",
            )
        self._keep(known)
        return known.rows

    async def load(self, lora: LoRARequest) -> bool:
        """Read a prompt adapter and return True; return False if the adapter is of another kind.

        AlreadyExists if another adapter has its number and `load_inplace` is not set; other errors as in `rows_of`.
        """
        known = self._known.get(lora.lora_int_id)
        if known is None or known.rows is None or lora.load_inplace:
            return await self._read(lora) is not None
        if not _is_same(known.lora, lora):
            raise AlreadyExists(f"{_described(known)}; unload it first.")
        return True

    def remove(self, lora_id: int) -> bool:
        """Remove an adapter; return whether it was a prompt adapter. Unfinished requests have a copy of the virtual tokens."""
        known = self._known.pop(lora_id, None)
        return known is not None and known.rows is not None

    def pin(self, lora_id: int) -> bool:
        """Exclude an adapter from eviction; return whether it is a prompt adapter."""
        known = self._known.get(lora_id)
        if known is None or known.rows is None:
            return False
        if sum(each.is_pinned for each in self._known.values()) + 1 >= _MOST_KEPT:
            raise FailedPrecondition(f"{_MOST_KEPT - 1} prompt adapters are pinned; one place must stay free.")
        known.is_pinned = True
        return True

    async def _read(self, lora: LoRARequest) -> PromptEmbeds | None:
        found = await asyncio.to_thread(_read_adapter, lora)
        if found is None:  # the directory does not exist, or this process cannot read it
            return None
        before = self._known.get(lora.lora_int_id)
        found.is_pinned = before is not None and before.is_pinned
        self._keep(found)
        return found.rows

    def _keep(self, used: _Known) -> None:
        self._known.pop(used.lora.lora_int_id, None)
        self._known[used.lora.lora_int_id] = used
        if len(self._known) > _MOST_KEPT:
            oldest = next(number for number, each in self._known.items() if not each.is_pinned)
            del self._known[oldest]


def _described(known: _Known) -> str:
    return f"Adapter id {known.lora.lora_int_id} is {known.lora.lora_name!r} at {known.lora.lora_path}"


def _is_same(one: LoRARequest, other: LoRARequest) -> bool:
    return (one.lora_name, one.lora_path) == (other.lora_name, other.lora_path)


def _read_adapter(lora: LoRARequest) -> _Known | None:
    """Read an adapter from its directory; None: it has no readable config. ModelError for an invalid prompt adapter."""
    try:
        directory = Path(lora.lora_path).expanduser()
        config = json.loads((directory / _CONFIG).read_text())
    except (OSError, ValueError, RuntimeError):  # RuntimeError: ~name of no user
        return None
    kept = LoRARequest(lora.lora_name, lora.lora_int_id, lora.lora_path)
    if not isinstance(config, dict) or config.get("peft_type") != "PROMPT_TUNING":
        return _Known(kept, None)

    def refuse(text: str) -> ModelError:
        return ModelError(f"Adapter {lora.lora_name!r} at {lora.lora_path} cannot be loaded: {text}", reason="LORA_NOT_USABLE")

    if config.get("task_type") not in (None, "CAUSAL_LM"):
        raise refuse(f"its task_type is {str(config['task_type'])[:40]!r}; only CAUSAL_LM is supported.")
    try:
        data = (directory / _WEIGHTS).read_bytes()
    except OSError:
        raise NotFound(f"Adapter {lora.lora_name!r} at {lora.lora_path} has no {_WEIGHTS} that can be read.") from None
    rows = embeds_of_safetensors(data, name=_TENSOR, refuse=refuse)
    declared = config.get("num_virtual_tokens")
    if declared != rows.num_rows:
        raise refuse(f"{_CONFIG} says num_virtual_tokens {declared!r}, but the file has {rows.num_rows}.")
    return _Known(kept, rows)
