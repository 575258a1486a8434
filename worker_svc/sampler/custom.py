"""Custom processors: calls the logits processors of other authors, request by request, and turns their errors into results.

Owned by the sampler, on the compute thread. A request's functions are made when it is added, so it is refused alone if its
parameters are wrong. A row whose function fails is reported with its error; other rows are not touched. Also used by the
sampler of the CUDA device, which has the tokens elsewhere.
"""

import inspect
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from tetrad.services.errors import InternalError, InvalidRequest, TetradError, one_line
from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.logits_processor import RequestLogitsProcessor, RequestParams
from tetrad.worker_svc.core.plan import Ints, NewRequest
from tetrad.worker_svc.core.request_table import refuse_extra_args
from tetrad.worker_svc.sampler.custom_classes import NamedProcessor
from tetrad.worker_svc.sampler.failures import failure
from tetrad.worker_svc.sampler.processors import MASKED

RowErrors = Sequence[tuple[int, TetradError]]
"""Rows of a step with their errors."""
_NO_PROCESSOR = ""
"""In place of a class: the logits before the first one."""


class RequestFunction(NamedTuple):
    """A request's function of one processor.

    Attributes:
        name: the name of the processor's class.
        function: takes token ids and logits.
        takes_prompt: whether its first argument is the prompt.
    """

    name: str
    function: RequestLogitsProcessor
    takes_prompt: bool

    def apply(self, prompt: list[int], output: list[int], row: torch.Tensor) -> torch.Tensor:
        """Change the logits `row` [V] in place, and return the largest one [] of them, on their device.

        Raises InternalError if the function fails, or returns other things than logits.
        """
        arguments = (prompt, output, row) if self.takes_prompt else (output, row)
        try:
            found = self.function(*arguments)
        except Exception as error:
            text = f"Logits processor {self.name} raised {type(error).__name__}: {one_line(error)}."
            raise InternalError(text) from error
        if found is not row:
            self._check(found, row)
            row.copy_(found)
        return row.amax()

    def _check(self, found: object, row: torch.Tensor) -> None:
        wanted = _shown(row)
        if not isinstance(found, torch.Tensor):
            raise InternalError(f"Logits processor {self.name} returned a {type(found).__name__} in place of logits {wanted}.")
        if found.layout != row.layout or (found.shape, found.dtype, found.device) != (row.shape, row.dtype, row.device):
            raise InternalError(f"Logits processor {self.name} returned {_shown(found)} in place of logits {wanted}.")


class RequestFunctions(NamedTuple):
    """The functions of one request, in the order of their processors."""

    functions: tuple[RequestFunction, ...]
    num_prompt_tokens: int


class CustomRequests:
    """The requests that concern custom processors, by slot.

    Args:
        processors: the custom processors, in the order of application.
    """

    def __init__(self, processors: Sequence[NamedProcessor]) -> None:
        self._processors = processors
        self._checked: tuple[int, RequestFunctions | None] | None = None  # the last checked handle, which `add` adds next
        self.by_slot: dict[int, RequestFunctions] = {}

    def check(self, request: NewRequest) -> None:
        """Make the functions of a request, which is added next.

        Raises InvalidRequest if a processor refuses its parameters, InternalError if a processor fails, Unsupported for
        extra_args without any processor.
        """
        if not self._processors:
            refuse_extra_args(request)
        self._checked = request.handle, self._functions(request)

    def add(self, slot: int, request: NewRequest) -> None:
        """Store the functions of a request."""
        checked, self._checked = self._checked, None
        found = checked[1] if checked is not None and checked[0] == request.handle else self._functions(request)
        if found is not None:
            self.by_slot[slot] = found

    def remove(self, slot: int) -> None:
        """Delete a slot's functions."""
        self.by_slot.pop(slot, None)

    def _functions(self, request: NewRequest) -> RequestFunctions | None:
        if not self._processors or request.pooling is not None:
            return None
        params, found = _params_of(request), []
        for named in self._processors:
            try:
                named.validate(params)
                function = named.processor.new_req_logits_processor(params)
                if function is not None:
                    found.append(RequestFunction(named.name, function, _takes_prompt(function)))
            except ValueError as error:
                text = f"Logits processor {named.name} refuses the request: {one_line(error)}."
                raise InvalidRequest(text, field="extra_args") from error
            except Exception as error:
                text = f"Logits processor {named.name} failed for a new request: {type(error).__name__}: {one_line(error)}."
                raise InternalError(text) from error
        return RequestFunctions(tuple(found), request.num_prompt_tokens) if found else None


class CustomProcessors(CustomRequests):
    """The custom processors of the host's sampler."""

    def concerns(self, slots: Ints) -> bool:
        """Return whether any of these slots has functions."""
        return bool(self.by_slot) and not self.by_slot.keys().isdisjoint(slots.tolist())

    def apply(self, logits: torch.Tensor, slots: Ints, batch: InputBatch) -> RowErrors:
        """Change logits [R, V] in place, row r for the request in slots[r]; return the rows whose functions failed."""
        if not self.by_slot:
            return ()
        errors: list[tuple[int, TetradError]] = []
        for row, slot in enumerate(slots.tolist()):
            found = self.by_slot.get(slot)
            if found is None:
                continue
            ids = batch.token_ids[slot, : batch.num_tokens[slot]].tolist()
            apply_functions(found, row, ids, logits[row], errors, lambda name, largest: check_largest(name, float(largest)))
        return errors


def apply_functions(
    found: RequestFunctions,
    row: int,
    token_ids: list[int],
    logits: torch.Tensor,
    errors: list[tuple[int, TetradError]],
    check: Callable[[str, torch.Tensor], None],
) -> None:
    """Apply a request's functions to its logits [V]; on an error, note it for the row and mask all logits.

    Args:
        found: the functions.
        row: the row of the step.
        token_ids: the tokens of prompt and output.
        logits: the row's logits.
        errors: receives the error.
        check: called with the largest logit before the functions, and with the name of each class and the largest logit that it
            left; may raise the error of the row.
    """
    prompt, output = token_ids[: found.num_prompt_tokens], token_ids[found.num_prompt_tokens :]
    try:
        check(_NO_PROCESSOR, logits.amax())
        for each in found.functions:
            check(each.name, each.apply(prompt, output, logits))
    except TetradError as error:
        errors.append((row, error))
        logits.fill_(MASKED)


def check_largest(name: str, largest: float) -> None:
    """Raise the error of a processor that has left this largest logit, if it is not finite.

    Without a name, no processor has been applied: the request's other parameters, or the model, are the reason.
    """
    if name == _NO_PROCESSOR and not math.isfinite(largest):
        raise failure(largest)
    if largest == MASKED:
        raise InvalidRequest(
            f"Nothing is left to sample: logits processor {name} excludes every token that the request's parameters allow."
        )
    if not math.isfinite(largest):
        raise InternalError(f"Logits processor {name} returned logits of which the largest is {largest}.")


def _takes_prompt(function: RequestLogitsProcessor) -> bool:
    """Return whether the function takes prompt, output and logits; raise TypeError if it takes other numbers of arguments."""
    try:
        number = len(inspect.signature(function).parameters)
    except ValueError as error:
        raise TypeError(f"the parameters of {function!r} cannot be counted") from error
    if number not in (2, 3):
        raise TypeError(f"the function has {number} parameters; it must have 2 (output, logits) or 3 (prompt, output, logits)")
    return number == 3


def _params_of(request: NewRequest) -> RequestParams:
    sampling = request.sampling
    return RequestParams(
        extra_args=sampling.extra_args,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        seed=sampling.seed,
        max_tokens=sampling.max_tokens,
        min_tokens=sampling.min_tokens,
        ignore_eos=sampling.ignore_eos,
        stop_token_ids=sampling.stop_token_ids,
        logprobs=sampling.num_logprobs,
        prompt_logprobs=sampling.num_prompt_logprobs,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        logit_bias=sampling.logit_bias or None,
        allowed_token_ids=sampling.allowed_token_ids or None,
    )


def _shown(tensor: torch.Tensor) -> str:
    sparse = "" if tensor.layout == torch.strided else "sparse "
    return f"{list(tensor.shape)} {sparse}{str(tensor.dtype).removeprefix('torch.')} on {tensor.device}"
