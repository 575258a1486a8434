"""LoRA of stacked experts: extracts the change of one expert's linear layer from an adapter's tensors of all experts.

PEFT writes these tensors if the weights of all experts are one parameter (target_parameters): A [experts * rank, inputs] and
B [outputs, rank * experts], for gate and up together, and for down. PEFT wraps a module once for each of its parameters, in an
order that depends on PEFT's release, so this module finds the changed parameter by the shapes of the tensors.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch

from tetrad.services.errors import ModelError
from tetrad.worker_svc.checkpoint.canonical import canonical_rows, stored_names
from tetrad.worker_svc.core.lora import LoraSite
from tetrad.worker_svc.model_facts.tensor_names import Rows, Stored, TensorNames

_MODULE = re.compile(r"(.+\.experts)\.(\d+)\.(gate|up|down)_proj")
_WRAPPED = ("", ".base_layer")
ShapeOf = Callable[[str], tuple[int, ...] | None]


class ExpertStack(NamedTuple):
    """The tensors of all experts, and the place of one expert's module in them.

    Attributes:
        module: name of the wrapped module in the files.
        parameter: name of the changed parameter, for PEFT's patterns.
        expert, num_experts: number of the expert, and number of experts.
        rows: the module's rows of B; None: all.
    """

    module: str
    parameter: str
    expert: int
    num_experts: int
    rows: Rows | None

    @property
    def tensors(self) -> tuple[str, str]:
        """The names of A and B."""
        return f"{self.module}.lora_A.weight", f"{self.module}.lora_B.weight"

    def pair_of(self, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the module's A [rank, inputs] and B [outputs, rank]."""
        rank, rest = divmod(len(a), self.num_experts)
        if rest or b.shape[1] != len(a):
            raise ModelError(
                f"Tensors {self.tensors[0]} {tuple(a.shape)} and {self.tensors[1]} {tuple(b.shape)} do not hold "
                f"{self.num_experts} experts of one rank."
            )
        its_a, its_b = a[self.expert * rank : (self.expert + 1) * rank], b[:, self.expert :: self.num_experts]
        if self.rows is not None:
            its_b = canonical_rows(its_b, self.tensors[1], Stored(self.module, rows=self.rows))
        return its_a, its_b


class ExpertStacks:
    """Finds the tensors that several experts share.

    Args:
        sites: the modules that adapters may change, by canonical name.
        names: the tensor names of the model's family.
        shape_of: returns the shape of one of the adapter's tensors, by its name without PEFT's prefix; None: no such tensor.
    """

    def __init__(self, sites: Mapping[str, LoraSite], names: TensorNames, shape_of: ShapeOf) -> None:
        self._sites, self._names, self._shape_of = sites, names, shape_of
        self._counts: dict[str, int] = {}
        for match in filter(None, map(_MODULE.fullmatch, sites)):
            self._counts[match[1]] = max(self._counts.get(match[1], 0), int(match[2]) + 1)

    def of(self, name: str) -> ExpertStack | None:
        """Return the tensors with the change of a canonical module; None if no tensors of all experts change it."""
        match = _MODULE.fullmatch(name)
        if match is None:
            return None
        layer, expert, part = match.groups()
        site = self._sites[name]
        rows = self._rows(name, site, part, is_gated=f"{layer}.{expert}.gate_proj" in self._sites)
        shapes = site.inputs, rows.groups * rows.size if rows else site.outputs
        for home in self._homes(layer, name):
            parameter = f"{home}.{'gate_up_proj' if rows else f'{part}_proj'}" if home.endswith("experts") else f"{home}.weight"
            for wrapped in _WRAPPED:
                stack = ExpertStack(f"{home}{wrapped}", parameter, int(expert), self._counts[layer], rows)
                a, b = map(self._shape_of, stack.tensors)
                if a and b and (a[-1], b[0]) == shapes:
                    return stack
        return None

    def _rows(self, name: str, site: LoraSite, part: str, *, is_gated: bool) -> Rows | None:
        for stored, _ in stored_names(self._names, name):
            stack = stored.otherwise or stored if stored else None
            if stack is not None and stack.is_stacked:
                return stack.rows
        if part == "down" or not is_gated:
            return None
        first = 0 if part == "gate" else site.outputs
        return Rows(1, 2 * site.outputs, first, first + site.outputs)

    def _homes(self, layer: str, name: str) -> Iterator[str]:
        """Yield possible names of the wrapped module: the module of experts, or the tensor of all experts."""
        homes = [layer]
        for stored, module in stored_names(self._names, name):
            if stored is not None and stored.is_stacked:
                around = module.rpartition(".")[0]
                homes += [module, around, f"{around}.experts"]
            else:
                homes.append(f"{module.partition('.experts.')[0]}.experts")
        yield from dict.fromkeys(homes)
