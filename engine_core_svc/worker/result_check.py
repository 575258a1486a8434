"""Result check: finds the requests whose part of a worker's result does not match the plan.

Used by InFlight, for each result in the order of the plans. A wrong entry fails only its own request: the other entries stay
valid, and the worker keeps its connection. Costs little for requests without log-probabilities.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from tetrad.engine_core_svc.core.plan import Logprobs, ModelRunnerOutput, NewRequestData, PromptScores, SchedulerOutput
from tetrad.engine_core_svc.core.request import NO_LOGPROBS, LogprobWidths


@dataclass(slots=True)
class _Asked:
    """The log-probabilities that a request of the worker expects beside tokens.

    Attributes:
        widths: numbers of candidates of its log-probabilities.
        num_prompt_positions: number of positions of the prompt's log-probabilities; the first token has none.
        is_prompt_due: whether the prompt's log-probabilities must arrive with the next token.
        are_scores_due: whether the prompt's scores must.
    """

    widths: LogprobWidths
    num_prompt_positions: int
    is_prompt_due: bool
    are_scores_due: bool

    @classmethod
    def of(cls, new: NewRequestData) -> "_Asked":
        num_positions = new.num_prompt_tokens - 1
        # A request that is resumed with output has sent those of its prompt before.
        has_output = len(new.token_ids) > new.num_prompt_tokens
        is_prompt_due = bool(new.logprobs.prompt) and num_positions > 0 and not has_output
        return cls(new.logprobs, num_positions, is_prompt_due, bool(new.logprobs.scored) and not has_output)

    @property
    def num_rows(self) -> int:
        """The number of rows of the prompt's scores."""
        return self.num_prompt_positions - self.widths.scored_from


_NOTHING = _Asked(LogprobWidths(), 0, is_prompt_due=False, are_scores_due=False)


class ResultCheck:
    """Compares results with plans, request by request.

    Args:
        vocab_size: size of the vocabulary; token ids are smaller.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._asked: dict[int, _Asked] = {}  # by key, only requests with log-probabilities
        self._pooling: set[int] = set()

    def note_plan(self, plan: SchedulerOutput) -> None:
        """Record which requests the worker knows from this plan on."""
        for key in plan.removed_keys:
            self._asked.pop(key, None)
            self._pooling.discard(key)
        for new in plan.new_requests:
            if new.logprobs != NO_LOGPROBS:
                self._asked[new.key] = _Asked.of(new)
            if new.pools:
                self._pooling.add(new.key)

    def find_problems(self, plan: SchedulerOutput, result: ModelRunnerOutput) -> dict[int, str]:
        """Return the problems of a result by request key; requests that the worker failed itself may be among them."""
        problems: dict[int, str] = {}
        self._check_logprobs(result, problems)
        self._check_tokens(plan, result, problems)
        if result.keys != plan.sampling_keys or result.pooling_outputs or self._pooling:
            self._check_keys(plan, result, problems)
        return problems

    def _check_tokens(self, plan: SchedulerOutput, result: ModelRunnerOutput, problems: dict[int, str]) -> None:
        rows = result.token_ids
        if all(len(row) == 1 for row in rows) and max(chain.from_iterable(rows), default=0) < self._vocab_size:
            return
        for key, row in zip(result.keys, rows, strict=True):
            if key in self._pooling:
                problem = f"it has {len(row)} tokens, and its answer was to be pooled" if row else ""
            else:
                problem = self._compare_tokens(row, plan.draft_tokens.get(key, ()))
            if problem:
                problems[key] = problem

    def _compare_tokens(self, row: Sequence[int], draft_ids: Sequence[int]) -> str:
        """Return the problem of the tokens of a request that verifies drafts; empty if there is none."""
        if not 0 < len(row) <= 1 + len(draft_ids):
            planned = f"at most {1 + len(draft_ids)} were" if draft_ids else "one was"
            return f"it has {len(row)} tokens, and {planned} planned"
        if max(row) >= self._vocab_size:
            return f"it has token {max(row)}, and the vocabulary has {self._vocab_size}"
        if [*row[:-1]] != [*draft_ids[: len(row) - 1]]:
            return f"it has tokens {[*row]}, of which all but the last must be drafts, and these were {[*draft_ids]}"
        return ""

    def _check_keys(self, plan: SchedulerOutput, result: ModelRunnerOutput, problems: dict[int, str]) -> None:
        """Find requests without a token or answer, with several rows, or with a row that was not planned."""
        brought, ended = set(result.keys), set(plan.sampling_keys)
        if len(brought) != len(result.keys):
            counts = Counter(result.keys)
            problems.update({key: f"it is named {count} times" for key, count in counts.items() if count > 1})
        pooled, answers = ended & self._pooling, result.pooling_outputs.keys()
        problems.update(dict.fromkeys(ended - self._pooling - brought, "it has no token"))
        problems.update(dict.fromkeys(brought - ended, "it has a token before the end of its prompt is computed"))
        problems.update(dict.fromkeys(pooled - answers, "it has no pooled answer"))
        problems.update(dict.fromkeys(answers - pooled, "it has a pooled answer, and none was planned"))

    def _check_logprobs(self, result: ModelRunnerOutput, problems: dict[int, str]) -> None:
        concerned = {*result.logprobs, *result.prompt_logprobs, *result.prompt_scores}
        if self._asked:
            concerned.update(key for key in result.keys if key in self._asked)
        if not concerned:
            return
        num_tokens = Counter({key: len(row) for key, row in zip(result.keys, result.token_ids, strict=True)})
        for key in concerned:
            asked, num_positions = self._asked.get(key, _NOTHING), num_tokens[key]
            width = asked.widths.sampled if num_positions else 0
            prompt = result.prompt_logprobs.get(key)
            problem = _compare("log-probabilities", result.logprobs.get(key), num_positions=num_positions, width=width)
            if prompt is not None or (num_positions and asked.is_prompt_due):
                of_prompt = "log-probabilities of its prompt"
                problem = problem or _compare(
                    of_prompt, prompt, num_positions=asked.num_prompt_positions, width=asked.widths.prompt
                )
            scores = result.prompt_scores.get(key)
            if scores is not None or (num_positions and asked.are_scores_due):
                problem = problem or _compare_scores(scores, asked)
            if num_positions:
                asked.is_prompt_due = asked.are_scores_due = False
            if problem:
                problems[key] = problem


def _compare_scores(found: PromptScores | None, asked: _Asked) -> str:
    """Return the problem of the scores of a prompt; empty if they have the planned shape."""
    width = asked.widths.scored
    if found is None:
        return "it has no scores of its prompt"
    if not width:
        return "it has scores of its prompt, and none were planned"
    if found.has_shape(asked.num_rows, width):
        return ""
    shape = f"{found.num_rows} rows of {found.width} in {len(found.scores)} bytes"
    return f"it has scores of its prompt in {shape}, and {asked.num_rows} rows of {width} were planned"


def _compare(name: str, found: Logprobs | None, *, num_positions: int, width: int) -> str:
    """Return the problem of log-probabilities; empty if they have this shape. Width 0: none are expected."""
    if found is None:
        return f"it has no {name}" if width else ""
    if not width:
        return f"it has {name}, and none were planned"
    if found.has_shape(num_positions, width):
        return ""
    return (
        f"it has {name} for {found.num_positions} positions of {found.width} candidates in {len(found.logprobs)} bytes, and "
        f"{num_positions} positions of {width} were planned"
    )
