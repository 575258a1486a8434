"""Canonical names: maps the tensors of a checkpoint to the names and forms that programs read.

See model_facts/tensor_names.py.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch

from tetrad.services.errors import ModelError
from tetrad.worker_svc.checkpoint.source import DOWNLOAD_AGAIN, StoredMatrix, WeightSource, values_of
from tetrad.worker_svc.checkpoint.wrapped import WrappedSource
from tetrad.worker_svc.model_facts.tensor_names import Rows, Stored, TensorNames

_IN_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
_MODEL, _HEAD = "model.", "lm_head"
_EXPERT = re.compile(r"(?<=\.experts\.)\d+(?=\.)")


class _Place(NamedTuple):
    """A tensor of the files: its name, its conversion to the canonical form, and the number of the expert."""

    name: str
    stored: Stored | None
    expert: int = 0
    is_weight: bool = True


class CanonicalSource(WrappedSource):
    """A WeightSource with the tensors of another source under canonical names.

    Args:
        source: the files.
        names: the tensor names of the model's family.
    """

    def __init__(self, source: WeightSource, names: TensorNames) -> None:
        super().__init__(source)
        self._names = names
        embeddings = names.in_model.get("model.embed_tokens", Stored("model.embed_tokens"))
        found = [prefix for prefix in names.prefixes if source.has(f"{prefix}{embeddings.name}.weight")]
        self._prefix = (found or names.prefixes)[0]

    def has(self, name: str) -> bool:
        """Return whether the files have this tensor, or a tensor that contains it."""
        return self._source.has(self._place(name).name)

    def unread(self) -> list[str]:
        """Return the names, in the files, of tensors of which no part has been loaded."""
        names = self._names
        return [
            name for name in self._source.unread() if not (name.endswith(names.ignored) or name.startswith(names.unused_layers))
        ]

    def load(self, name: str) -> tuple[torch.Tensor, int]:
        """Return the canonical tensor in float32 and its bytes as stored."""
        place = self._place(name)
        if place.stored is None:
            return self._source.load(place.name)
        is_matrix = place.is_weight and not (place.stored.is_flat or place.stored.is_decay)
        found = self._load_part(place, place.stored) if is_matrix else None
        if found is not None:
            matrix, stored_bytes = found
            return values_of(matrix), stored_bytes
        part = _part(self._source.load_stored(place.name), place)
        return part.to(torch.float32, copy=True), part.nbytes

    def load_stored(self, name: str) -> torch.Tensor:
        """Return the canonical tensor in its stored type; tensors that are scaled or shifted are in float32."""
        place = self._place(name)
        found = self._load_packed(place)
        if found is not None:
            return values_of(found[0])
        stored = self._source.load_stored(place.name)
        return stored if place.stored is None else _part(stored, place)

    def load_quantized(self, name: str) -> tuple[StoredMatrix, int] | None:
        """Return a packed matrix, reduced to the canonical tensor's rows, and its size in bytes; None if it is in floats."""
        place = self._place(name)
        return self._source.load_quantized(place.name) if place.stored is None else self._load_part(place, place.stored)

    def _load_packed(self, place: _Place) -> tuple[StoredMatrix, int] | None:
        """Return one expert of a quantized stack, or a packed matrix that would have another form in floats; None: neither."""
        if place.stored is None or not (place.stored.is_stacked or place.stored.is_transposed) or not place.is_weight:
            return None
        return self._load_part(place, place.stored)

    def _load_part(self, place: _Place, stored: Stored) -> tuple[StoredMatrix, int] | None:
        if stored.is_row or stored.columns or stored.plus or stored.times != 1:
            return None
        found = self._source.load_quantized(place.name)
        if found is None:
            return None
        whole, stored_bytes = found
        # Packed matrices have one row per output, even if the model's float matrices are transposed.
        place = place._replace(stored=replace(stored, is_transposed=False))
        choose = partial(_part, place=place)
        part = choose(whole) if isinstance(whole, torch.Tensor) else whole.of_rows(choose)
        return part, stored_bytes * part.shape[0] // whole.shape[0]

    def _place(self, name: str) -> _Place:
        found = _IN_LAYER.fullmatch(name)
        if found is None:
            stem, _, kind = name.rpartition(".")
            stored = self._names.in_model.get(stem)
            if stored is None:
                return _Place(name, None)
            return _Place(f"{self._prefix}{stored.name}{_ending(stored, kind)}", stored, is_weight=kind == "weight")
        number, rest = found.groups()
        layer = f"{self._prefix}{self._names.layers}.{number}"
        whole = self._names.in_layer.get(rest)
        if whole is not None:
            return _Place(f"{layer}.{whole.name}", whole)
        stem, _, kind = rest.rpartition(".")
        expert = _EXPERT.search(stem)
        stored = self._names.in_layer.get(_EXPERT.sub("{expert}", stem))
        if stored is None:
            return _Place(f"{layer}.{rest}", None)
        index = int(expert.group()) if expert else 0
        place = first = self._in_layer(layer, stored, index, kind)
        while not self._source.has(place.name):
            if stored.otherwise is None:
                return first
            stored = stored.otherwise
            place = self._in_layer(layer, stored, index, kind)
        return place

    def _in_layer(self, layer: str, stored: Stored, expert: int, kind: str) -> _Place:
        name = f"{layer}.{stored.name.format(expert=expert)}{_ending(stored, kind)}"
        return _Place(name, stored, expert, kind == "weight")


def stored_names(names: TensorNames, name: str) -> Iterator[tuple[Stored | None, str]]:
    """Yield the possible names of a canonical module in the files, with the conversion of its rows; None: no conversion."""
    found = _IN_LAYER.fullmatch(name)
    if found is None:
        stored, own = names.in_model.get(name), name
    else:
        number, rest = found.groups()
        expert = _EXPERT.search(rest)
        stored = names.in_layer.get(_EXPERT.sub("{expert}", rest))
        own = f"{names.layers}.{number}.{rest if stored is None else stored.name}"
        if expert is not None:
            own = own.format(expert=expert.group())
    if found is None and stored is not None:
        own = stored.name
    is_whole = found is None and stored is None
    for prefix in ("",) if is_whole else names.prefixes:
        yield from ((stored, each) for each in _in_larger_model(names, f"{prefix}{own}"))
    if name == _HEAD != own:  # GPT-NeoX's files have another name than transformers' model
        yield stored, name


def _in_larger_model(names: TensorNames, module: str) -> Iterable[str]:
    """Return the possible names of a text model's module in a model that reads images; in one of text alone, its name."""
    if names.text_parts and module.startswith(_MODEL):
        return [f"{part.model}{module.removeprefix(_MODEL)}" for part in names.text_parts]
    if names.text_parts and module == _HEAD:
        return dict.fromkeys(part.head.removesuffix(".") for part in names.text_parts)
    return [module]


def canonical_rows(tensor: torch.Tensor, name: str, stored: Stored) -> torch.Tensor:
    """Return the rows of the canonical module from a matrix with the rows of the stored module."""
    return _part(tensor, _Place(name, stored, is_weight=False))


def _ending(stored: Stored, kind: str) -> str:
    return {"weight": stored.weight, "bias": stored.bias}.get(kind, f".{kind}")


def _part(tensor: torch.Tensor, place: _Place) -> torch.Tensor:
    """Return the part of a stored tensor that belongs to the canonical one."""
    stored = place.stored
    assert stored is not None
    if stored.is_stacked:
        if place.expert >= len(tensor):
            raise ModelError(f"Tensor {place.name} has {len(tensor)} experts, but the config asks for more. {DOWNLOAD_AGAIN}")
        tensor = tensor[place.expert]
    is_transposed = stored.is_transposed or (stored.columns is not None and tensor.shape[-1] != stored.columns)
    if is_transposed and place.is_weight:
        tensor = tensor.T
    if stored.rows is not None:
        tensor = _rows(tensor, place.name, stored.rows)
    if stored.is_row:
        tensor = tensor.reshape(1, -1)
    if stored.is_flat:
        tensor = tensor.flatten()
    if stored.is_decay:
        tensor = torch.log(-tensor.float())
    if stored.paired is not None:
        tensor = tensor[_halves(place.name, len(tensor), *stored.paired)]
    if stored.times != 1:
        tensor = tensor.float() * stored.times
    return tensor.float() + stored.plus if stored.plus and place.is_weight else tensor


def _rows(tensor: torch.Tensor, name: str, rows: Rows) -> torch.Tensor:
    if len(tensor) != rows.groups * rows.size:
        asked = rows.groups * rows.size
        raise ModelError(f"Tensor {name} has {len(tensor)} rows, but the config asks for {asked}. {DOWNLOAD_AGAIN}")
    groups = tensor.reshape(rows.groups, rows.size, *tensor.shape[1:])
    return groups[:, rows.first : rows.end].flatten(0, 1)


def _halves(name: str, num_rows: int, head_dim: int, turned: int) -> torch.Tensor:
    """Return the order of rows that separates the pairs of each head: the inverse of layers.rotary.interleave_heads."""
    if num_rows % head_dim:
        raise ModelError(f"Tensor {name} has {num_rows} rows, which heads of {head_dim} do not divide.")
    heads = torch.arange(num_rows).view(-1, head_dim)
    pairs = heads[:, :turned].view(len(heads), -1, 2).transpose(1, 2).flatten(1)
    return torch.cat([pairs, heads[:, turned:]], 1).flatten()
