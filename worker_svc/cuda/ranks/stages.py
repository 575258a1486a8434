"""Stages: the parts of a CUDA runner whose model is a stage of a pipeline; every stage runs every plan, with its layers.

The runner, its requests and its graphs are those of a whole model. A stage after the first computes on hidden states that it
receives in place of embeddings. A stage before the last computes no logits: it sends its hidden states on, and receives the
sampled tokens. Exchanges are queued before and after a graph, not in it.
"""

from collections import deque
from typing import NamedTuple

import numpy as np
import torch

from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.plan import GrammarRows, Ints
from tetrad.worker_svc.core.step_inputs import StepRows
from tetrad.worker_svc.cuda.device.accelerator import Accelerator
from tetrad.worker_svc.cuda.forward_passes import ForwardPasses
from tetrad.worker_svc.cuda.graphs import LEAST_ROWS
from tetrad.worker_svc.cuda.media.given_inputs import NOTHING_GIVEN, GivenInputs
from tetrad.worker_svc.cuda.pass_inputs import PassInputs
from tetrad.worker_svc.cuda.ranks.links import StageLinks
from tetrad.worker_svc.cuda.runner_parts import PassParts, SamplerParts
from tetrad.worker_svc.cuda.sampling.sampler import DeviceSampled, DeviceSampler
from tetrad.worker_svc.cuda.sampling.state import DeviceState
from tetrad.worker_svc.cuda.step_passes import PassValues, See, StepPasses
from tetrad.worker_svc.runner.rank_channels import Arrival


class StageParts:
    """Creates the parts of a stage's runner; see RunnerParts.

    Args:
        links: the connections to the other stages.
    """

    def __init__(self, links: StageLinks) -> None:
        self._links = links

    def state(self, accelerator: Accelerator, batch: InputBatch) -> DeviceState:
        """See RunnerParts."""
        return DeviceState(accelerator, batch) if self._links.place.is_last else ArrivingState(accelerator, batch)

    def sampler(self, parts: SamplerParts) -> DeviceSampler:
        """See RunnerParts."""
        if isinstance(parts.state, ArrivingState):
            return ExpectingSampler(parts, parts.state, self._links)
        return PublishingSampler(parts, self._links)

    def passes(self, parts: PassParts, *, use_graphs: bool) -> StepPasses:
        """See RunnerParts."""
        links, place = self._links, self._links.place
        passes = parts.forward_passes() if place.is_first else EnteredPasses(parts)
        inner = parts.step_passes(passes, use_graphs=use_graphs, has_output=place.is_last)
        if isinstance(passes, EnteredPasses):
            inner = ReceivingPasses(inner, passes, links)
        return inner if place.is_last else SendingPasses(inner, links)

    def bytes_in_flight(self, step_bytes: int) -> int:
        """See RunnerParts; a stage keeps hidden states until they have arrived, of a step for each stage."""
        place = self._links.place
        return 0 if place.is_last else place.size * step_bytes


class EnteredPasses(ForwardPasses):
    """The forward passes of a stage after the first.

    Args:
        parts: what they work with.

    Attributes:
        hidden: [T, hidden], the hidden states that the next pass computes on; graphs read them there.
    """

    def __init__(self, parts: PassParts) -> None:
        super().__init__(parts.model, parts.cache, parts.state, parts.batch, parts.accelerator, parts.shifts)
        model, limits = parts.model, parts.layout
        most_tokens = max(limits.max_num_batched_tokens, limits.max_num_seqs, LEAST_ROWS)
        size, device = model.config.hidden_size, parts.accelerator.device
        self.hidden = torch.zeros(most_tokens, size, dtype=model.dtype, device=device)

    def _run(self, inputs: PassInputs, given: GivenInputs = NOTHING_GIVEN) -> torch.Tensor:
        hidden = self.hidden[: len(inputs.token_ids)].clone()  # the pass changes them
        return super()._run(inputs._replace(token_ids=hidden), given)


class WrappedPasses:
    """Step passes with an exchange around each; see StepPasses.

    Args:
        inner: the passes.
        links: the connections to the other stages.
    """

    def __init__(self, inner: StepPasses, links: StageLinks) -> None:
        self._inner, self._links = inner, links
        self.num_graphs, self.record, self.rehearse = inner.num_graphs, inner.record, inner.rehearse

    @property
    def see(self) -> See:
        """See StepPasses."""
        return self._inner.see

    @see.setter
    def see(self, see: See) -> None:
        self._inner.see = see


class ReceivingPasses(WrappedPasses):
    """Step passes that receive their hidden states.

    Args:
        inner, links: see WrappedPasses.
        passes: the passes that compute on the hidden states.
    """

    def __init__(self, inner: StepPasses, passes: EnteredPasses, links: StageLinks) -> None:
        super().__init__(inner, links)
        self._passes = passes

    def run(self, rows: StepRows, given: GivenInputs, *, needs_hidden: bool) -> PassValues:
        """See StepPasses; the first stage alone reads embeddings, and the first layers alone read deep rows."""
        self._links.receive_hidden(self._passes.hidden[: rows.num_tokens])
        return self._inner.run(rows, given, needs_hidden=needs_hidden)


class SendingPasses(WrappedPasses):
    """Step passes that send their hidden states on."""

    def run(self, rows: StepRows, given: GivenInputs, *, needs_hidden: bool) -> PassValues:  # noqa: ARG002 - they are sent in any case
        """See StepPasses; the logits are empty: [T, 0]."""
        hidden = self._inner.run(rows, given, needs_hidden=False).hidden
        assert hidden is not None, "a stage before the last computes no logits"
        self._links.send_hidden(hidden)
        return PassValues(logits=hidden[:, :0])


class PublishingSampler(DeviceSampler):
    """The sampler of the last stage, which sends the sampled tokens to the others; see DeviceSampler.

    Args:
        parts: what it works with.
        links: the connections to the other stages.
    """

    def __init__(self, parts: SamplerParts, links: StageLinks) -> None:
        super().__init__(*parts)
        self._links = links

    def sample(
        self, logits: torch.Tensor, slots: Ints, grammar: GrammarRows | None, places: Ints | None = None
    ) -> DeviceSampled:
        """See DeviceSampler."""
        sampled = super().sample(logits, slots, grammar, places)
        if len(slots):
            self._links.send_tokens(sampled.tensors[0])
        return sampled


class _Pending(NamedTuple):
    """Tokens [N] that are being received, for these slots [N], and their places [N] on the device."""

    slots: Ints
    places: torch.Tensor
    token_ids: torch.Tensor
    arrival: Arrival


class ArrivingState(DeviceState):
    """The device state of a stage that samples elsewhere: a step waits for tokens of its requests, and for no others.

    So a step of other requests runs while the last stage samples. Tokens are written in the order of their steps, and before
    whatever the slots' next requests write.

    Args:
        accelerator, batch: see DeviceState.
    """

    def __init__(self, accelerator: Accelerator, batch: InputBatch) -> None:
        super().__init__(accelerator, batch)
        self._arrival: Arrival | None = None
        self._pending: deque[_Pending] = deque()

    def expect(self, arrival: Arrival) -> None:
        """Set the arrival of the tokens that `append` or `write` is called with next."""
        self._arrival = arrival

    def append(self, slots: Ints, sampled: torch.Tensor) -> None:
        """See DeviceState; the tokens may arrive later."""
        if len(slots):
            self._pending.append(_Pending(slots, self._next_places(slots), sampled, self._take_arrival()))

    def write(self, slots: Ints, places: Ints, sampled: torch.Tensor) -> None:
        """See DeviceState; waits for the tokens, since all later steps depend on the verification."""
        if len(slots):
            self._take_arrival().wait()
        super().write(slots, places, sampled)

    def catch_up(self, slots: Ints) -> None:
        """See DeviceState; the sampled tokens of these slots are written first."""
        needed = [number for number, each in enumerate(self._pending, 1) if np.isin(each.slots, slots).any()]
        for _ in range(max(needed, default=0)):
            pending = self._pending.popleft()
            pending.arrival.wait()
            self._put(pending.places, pending.token_ids)
        super().catch_up(slots)

    def _take_arrival(self) -> Arrival:
        arrival, self._arrival = self._arrival, None
        assert arrival is not None, "the sampler expects tokens first"
        return arrival


class ExpectingSampler(DeviceSampler):
    """The sampler of a stage before the last, which receives the tokens; see DeviceSampler.

    Args:
        parts: what it works with.
        state: its state on the device.
        links: the connections to the other stages.
    """

    def __init__(self, parts: SamplerParts, state: ArrivingState, links: StageLinks) -> None:
        super().__init__(*parts)
        self._links, self._tokens = links, state
        self._unread = torch.zeros(2, parts.batch.max_num_seqs, dtype=torch.int32, device=parts.accelerator.device)

    def sample(
        self,
        logits: torch.Tensor,  # noqa: ARG002 - empty
        slots: Ints,
        grammar: GrammarRows | None,  # noqa: ARG002 - the last stage's
        places: Ints | None = None,
    ) -> DeviceSampled:
        """Expect a token for each row; rows belong to slots [R], see DeviceSampler.

        What a step without drafts brings is not read here, but by the leader: zeros stand for it. The tokens of drafts are
        read, because the next step depends on their number.
        """
        if not len(slots):
            return DeviceSampled(self._unread[0, :0], [self._unread[:, :0]], ())
        chosen, arrival = self._links.expect_tokens(len(slots))
        self._tokens.expect(arrival)
        return DeviceSampled(chosen[0], [self._unread[:, : len(slots)] if places is None else chosen], ())
