"""ProgramBuilder: writes a forward pass as a list of operations over numbered buffers, once, when a model is loaded.

A buffer is a matrix with one row for each token of the step; an operation reads one buffer and writes one. The norm before a
product, or the product itself, converts inputs to the form that the matrix's products read.
"""

import ctypes
from collections.abc import Mapping, Sequence
from enum import IntEnum

import torch

from tetrad.worker_svc.core.plan import Ints
from tetrad.worker_svc.model_facts.config import Activation, Experts, QueryScaling
from tetrad.worker_svc.native.operands import (
    NO_SITE,
    NOT_ADAPTED,
    Adapted,
    Epilogue,
    LayerPages,
    NormWeights,
    QueryKeyNorms,
    Shared,
)
from tetrad.worker_svc.native.program import Program
from tetrad.worker_svc.native.program_sums import NoSums, ProgramSums
from tetrad.worker_svc.native.structures import HeadNorms, Heads, MatrixFields, Operation, Routing
from tetrad.worker_svc.native.team import Team
from tetrad.worker_svc.native.weights import NativeMatrix


class _Kind(IntEnum):
    EMBED = 0
    NORM = 1
    LINEAR = 2
    ROTATE = 3
    ATTEND = 4
    ROTATE_PACKED = 5
    ATTEND_PACKED = 6
    ROUTE = 7
    EXPERTS = 8
    MIX = 9
    SUM = 10
    DEEPEN = 11


_ACTIVATIONS: Mapping[Activation, int] = {"silu": 0, "gelu": 1, "gelu_tanh": 2, "relu": 3, "relu2": 4}
"""Activations -> their numbers in rows.h."""
ROUTERS: Mapping[str, int] = {"softmax": 0, "softmax_chosen": 1, "grouped_softmax": 2, "grouped_sigmoid": 3}
"""Routers -> their numbers in routing.h."""
_NO_TURNS = -1
_NO_BUFFER = -1


class ProgramBuilder:
    """Writes a program, operation by operation.

    Args:
        team: the threads that will run the program.
        sums: the sums over ranks, if each rank has a part of the layers.
    """

    def __init__(self, team: Team, sums: ProgramSums = NoSums()) -> None:  # noqa: B008 - it has no state
        self._team, self._sums = team, sums
        self._operations: list[Operation] = []
        self._widths: list[int] = []
        self._kept: list[object] = []  # objects that operations point at

    def buffer(self, width: int) -> int:
        """Return the number of a new buffer with `width` columns."""
        self._widths.append(width)
        return len(self._widths) - 1

    def embed(
        self,
        matrix: NativeMatrix,
        target: int,
        *,
        scale: float = 1.0,
        positions: torch.Tensor | None = None,
        site: int = NO_SITE,
        first_id: int = 0,
    ) -> None:
        """Write target = rows of the matrix by token id, times scale, plus rows of `positions` [P, columns] by position.

        Adapters change the rows by token id at `site`. The first row of the matrix is that of token `first_id`; rows outside of
        the matrix are zeros.
        """
        pointer = self._pointer(matrix)
        self._append(
            _Kind.EMBED,
            target=target,
            matrix=pointer,
            scale=scale,
            first=self._floats(positions),
            site=site,
            first_id=first_id,
        )

    def norm(
        self, weights: NormWeights, source: int, target: int, *, reader: NativeMatrix | None = None, added: float | None = None
    ) -> None:
        """Write target = norm of source; also store rows in the form that products of the matrix `reader` read.

        With `added`, target += added * norm of source, and the source is overwritten.
        """
        self._append(
            _Kind.NORM,
            source=source,
            target=target,
            eps=weights.eps,
            first=self._floats(weights.weight),
            second=self._floats(weights.bias),
            is_centered=weights.is_centered,
            matrix=self._pointer(reader) if reader else None,
            epilogue=Epilogue.STORE if added is None else Epilogue.ADD,
            scale=added or 0.0,
        )

    def linear(
        self,
        matrix: NativeMatrix,
        bias: torch.Tensor | None,
        source: int,
        target: int,
        *,
        column: int = 0,
        epilogue: Epilogue = Epilogue.STORE,
        activation: Activation = "silu",
        scale: float = 1.0,
        is_prepared: bool = False,
        adapted: Adapted = NOT_ADAPTED,
    ) -> None:
        """Write target, from `column` on, = matrix times source, plus bias; Epilogue.ADD adds this times `scale`."""
        self._append(
            _Kind.LINEAR,
            source=source,
            target=target,
            column=column,
            epilogue=epilogue,
            activation=_ACTIVATIONS[activation],
            scale=scale,
            matrix=self._pointer(matrix),
            first=self._floats(bias),
            is_prepared=is_prepared,
            site=adapted.site,
            shrunk=adapted.shrunk,
        )

    def route(self, experts: Experts, correction: torch.Tensor | None, counts: Ints, scores: int) -> Routing:
        """Write the choice of each token's experts by its scores [T, experts], which are overwritten; return the routing.

        Args:
            experts: the description of the layer's experts; the router "sigmoid_input" is not supported.
            correction: [experts], added to the scores for the choice only, not for the weights.
            counts: [experts], counters to which each run adds the number of tokens of each expert.
            scores: the buffer of the scores.
        """
        self._kept.append(counts)
        routing = Routing(
            router=ROUTERS[experts.router],
            num_experts=experts.num_experts,
            num_chosen=experts.num_chosen,
            num_groups=experts.num_groups,
            num_chosen_groups=experts.num_chosen_groups,
            is_renormalized=experts.is_renormalized,
            scale=experts.scale,
            correction=self._floats(correction),
            counts=counts.ctypes.data,
        )
        self._append(_Kind.ROUTE, source=scores, routing=self._routing(routing))
        return routing

    def experts(
        self,
        routing: Routing,
        matrices: Sequence[NativeMatrix],
        biases: torch.Tensor | None,
        source: int,
        target: int,
        *,
        epilogue: Epilogue = Epilogue.STORE,
        activation: Activation = "silu",
        clamp: float = 0.0,
        is_prepared: bool = False,
        is_by_place: bool = False,
        adapted: Adapted = NOT_ADAPTED,
    ) -> None:
        """Write target [T * chosen, outputs], by place, = each expert's matrix times its tokens, plus its row of biases.

        Args:
            routing: the choice of experts.
            matrices: the matrices of all experts, of one shape and form.
            biases: [experts, rows].
            source: a buffer with a row for each token; with `is_by_place`, a row for each pair of token and chosen expert.
            target: a buffer with room for the outputs.
            epilogue, activation: see `linear`; the epilogue is STORE, GATE or ACTIVATE.
            clamp: the limit in gpt-oss's activation; 0: use `activation`.
            is_prepared: whether a norm has converted the rows of a source by token.
            is_by_place: see source.
            adapted: the place where adapters change the first expert's product; the sites of the other experts follow.
        """
        assert len({(m.fields.rows, m.fields.columns, m.takes_floats) for m in matrices}) == 1, "experts differ"
        fields = (MatrixFields * len(matrices))(*(matrix.fields for matrix in matrices))
        self._kept.append((fields, matrices))
        self._append(
            _Kind.EXPERTS,
            source=source,
            target=target,
            epilogue=epilogue,
            activation=_ACTIVATIONS[activation],
            clamp=clamp,
            matrix=ctypes.cast(fields, ctypes.POINTER(MatrixFields)),
            first=self._floats(biases),
            is_prepared=is_prepared,
            routing=self._routing(routing),
            is_by_place=is_by_place,
            site=adapted.site,
            shrunk=adapted.shrunk,
        )

    def mix(
        self, routing: Routing, source: int, target: int, *, shared: Shared | None = None, added: float | None = None
    ) -> None:
        """Write target = the weighted sum of a token's rows of `source`, by place, plus the shared expert's output.

        With `added`, target += added * this sum.
        """
        gate = None if shared is None else shared.gate
        self._append(
            _Kind.MIX,
            source=source,
            target=target,
            routing=self._routing(routing),
            shared=_NO_BUFFER if shared is None else shared.outputs,
            shared_gate=_NO_BUFFER if gate is None else gate,
            epilogue=Epilogue.STORE if added is None else Epilogue.ADD,
            scale=added or 0.0,
        )

    def sum(self, source: int, target: int, *, added: float | None = None) -> None:
        """Write source = its sum over the ranks; with `added`, also target += added * this sum, otherwise target is source."""
        assert added is not None or target == source, "a sum is made in place"
        epilogue = Epilogue.STORE if added is None else Epilogue.ADD
        self._append(_Kind.SUM, source=source, target=target, epilogue=epilogue, scale=added or 0.0)

    def deepen(self, layer: int, target: int) -> None:
        """Write target += the rows that a step has for its images behind layer `layer`, see Tokens.deep."""
        self._append(_Kind.DEEPEN, column=layer, source=target, target=target)

    def rotate(
        self,
        pages: LayerPages,
        heads: int,
        norms: QueryKeyNorms | None = None,
        *,
        turns: int | None = 0,
        scaling: QueryScaling | None = None,
        bound: float = 0.0,
    ) -> None:
        """Write norm and rotation of queries and keys [q | k | v] in place; store keys and values in the layer's cache.

        Args:
            pages: the place of the layer's keys and values.
            heads: the buffer of queries, keys and values.
            norms: the norms of queries and keys; None: no norms.
            turns: index of the layer's rotary table in Tokens.turns; None: no rotary embeddings.
            scaling: scaling of queries by position, after the rotation.
            bound: bound of queries, keys and values before the norms; 0: no bound.
        """
        self._append(
            _Kind.ROTATE,
            layer=pages.place,
            group=pages.group,
            source=heads,
            target=heads,
            turns=_NO_TURNS if turns is None else turns,
            head_norms=norms.kind if norms else HeadNorms.NONE,
            eps=norms.eps if norms else 0.0,
            beta=scaling.beta if scaling else 0.0,
            period=scaling.period if scaling else 1.0,
            offset=scaling.offset if scaling else 0.0,
            clamp=bound,
            first=self._floats(norms.query if norms else None),
            second=self._floats(norms.key if norms else None),
        )

    def attend(
        self,
        pages: LayerPages,
        heads: int,
        target: int,
        *,
        sinks: torch.Tensor | None = None,
        slopes: torch.Tensor | None = None,
    ) -> None:
        """Write target = attention of the queries to the layer's cache.

        Args:
            pages: the place of the layer's keys and values.
            heads: the buffer of queries, keys and values.
            target: the buffer of the output.
            sinks: [num_heads], extra scores in the softmax; None: no sinks.
            slopes: [num_heads], slopes of linear biases of the scores; None: no biases.
        """
        self._append(
            _Kind.ATTEND,
            layer=pages.place,
            group=pages.group,
            window=pages.window or 0,
            source=heads,
            target=target,
            first=self._floats(sinks),
            second=self._floats(slopes),
        )

    def rotate_packed(self, turns: torch.Tensor, heads: int) -> None:
        """Write the rotation of packed prompts' queries and keys [q | k | v] in place, by Rotary.cos_sin [positions, R]."""
        self._append(_Kind.ROTATE_PACKED, source=heads, target=heads, first=self._floats(turns))

    def attend_packed(self, heads: int, target: int, *, window: int = 0) -> None:
        """Write target = attention within each packed prompt, to `window` tokens on both sides; 0: to all tokens."""
        self._append(_Kind.ATTEND_PACKED, source=heads, target=target, window=window)

    def build(self, name: str, heads: Heads) -> Program:
        """Return the program; `name` is the name of its runs in a profile."""
        return Program(name, self._team, list(self._operations), list(self._widths), heads, list(self._kept), self._sums)

    def _append(self, kind: _Kind, **fields: object) -> None:
        self._operations.append(Operation(kind=kind, **{"site": NO_SITE} | fields))

    def _pointer(self, matrix: NativeMatrix) -> object:
        self._kept.append(matrix)
        return ctypes.pointer(matrix.fields)

    def _routing(self, routing: Routing) -> object:
        self._kept.append(routing)
        return ctypes.pointer(routing)

    def _floats(self, values: torch.Tensor | None) -> int | None:
        if values is None:
            return None
        values = values.float().contiguous()
        self._kept.append(values)
        return values.data_ptr()
