"""PoolingIntake: admits a pooling request, prepares its inputs, and sends them to engine cores when these have room.

Owned by AsyncLLM. A request with many inputs has one admission and one deadline, and fails with the first input that fails.
All inputs are checked before the first one is sent. One event loop.
"""

import functools

from tetrad.frontend.llm.input_parts import InputParts
from tetrad.frontend.llm.intake import Intake
from tetrad.frontend.llm.model_tasks import use_without_pooling
from tetrad.frontend.llm.pooling_inputs import PoolingInputs
from tetrad.frontend.llm.pooling_job import PoolingJob
from tetrad.frontend.llm.pooling_window import PoolingWindow
from tetrad.frontend.request.deadlines import earliest_deadline, within
from tetrad.frontend.request.new_pooling import NewPooling
from tetrad.frontend.request.new_request import check_identity, check_trace_headers
from tetrad.frontend.request.pooling import TASKS, PoolingFacts, PoolingParams
from tetrad.frontend.request.prompts import estimated_prompt_tokens
from tetrad.services.errors import InvalidRequest

_STEPS_AHEAD = 4
"""Amount of work that an engine core has at a time, in full steps: two in flight, and two to plan meanwhile."""


class PoolingIntake(Intake[PoolingInputs]):
    """Accepts all pooling requests of one model. See Intake for its arguments."""

    @functools.cached_property
    def _window(self) -> PoolingWindow:
        return PoolingWindow(lambda: _STEPS_AHEAD * self._engines.info.max_num_batched_tokens * len(self._engines))

    async def take(self, new: NewPooling) -> PoolingJob:
        """Check and admit a request, start to send its inputs, and return its job. Errors: see AsyncLLM.encode_all."""
        inputs = self._gate.required(self._inputs)
        check_identity(new.request_id, new.priority)
        check_trace_headers(new.trace_headers)
        facts = self._pooling_facts(new)
        params = self._verified(new, facts)
        size = self._engines.max_model_len
        longest = min(facts.longest_prompt(each.task, size) for each in params)
        deadline = earliest_deadline(self._timeout_s)
        num_tokens = sum(map(estimated_prompt_tokens, new.prompts))
        with self._admitted(new, num_tokens) as (ticket, call):
            with call.working():
                async with within(deadline):
                    await inputs.check_adapters(new, is_enabled=self._engines.info.supports_lora)
                    ids, salts = await inputs.read(new, longest)
                    parts = InputParts(ids, params, size)
            self._gate.check_open()
            job = PoolingJob(new, parts, salts, self._backends, self._window, deadline=deadline, call=call)
        job.start(ticket)
        return job

    def _pooling_facts(self, new: NewPooling) -> PoolingFacts:
        facts = self._engines.info.pooling
        if facts is None:
            wanted = [each.task for each in new.params if each.task is not None]
            hint = self._tasks.hint(*(wanted or TASKS))
            use = use_without_pooling(transcribes=self._engines.info.supports_transcription)
            raise InvalidRequest(f"This model does not support pooling: {use}{hint}", field="model")
        return facts

    @staticmethod
    def _verified(new: NewPooling, facts: PoolingFacts) -> list[PoolingParams]:
        """Return the parameters of each input, with the task filled in.

        Raises:
            InvalidRequest: there are no inputs, or the parameters do not fit the model.
            Unsupported: the model does not have the task.
        """
        if not new.prompts:
            raise InvalidRequest("You must pass at least one prompt.", field="input")
        verified = {id(each): each.verify(facts) for each in new.params}
        return [verified[id(each)] for each in new.params]
