"""Proposers of drafts: one that is partly right, and one that passes the worker's own proposals on."""

from collections.abc import Callable, Mapping, Sequence
from random import Random

from tetrad.engine_core_svc.core.plan import ModelRunnerOutput
from tetrad.engine_core_svc.core.request import Request
from tetrad.engine_core_svc.scheduler.drafts.measured_step import MeasuredStep


class UnjudgedDrafts:
    """Proposes for every request, whatever steps cost, and lets the worker propose nothing."""

    def admits(self, request: Request) -> bool:
        return True

    def num_from_worker(self, num_requests: int) -> int:
        return 0

    def observe(self, step: MeasuredStep) -> None:
        pass

    def note_finished(self, requests: Sequence[Request]) -> None:
        pass


class GuessedDrafts(UnjudgedDrafts):
    """Proposes up to `max_tokens` tokens, each of which is right with the probability `skill`.

    `guess` returns the token that a request's key has in a place; what it is when wrong comes from `wrong_ids`. With
    `asks_worker`, every other step has the worker propose, too, so that requests get blocks ahead.
    """

    def __init__(
        self,
        random: Random,
        max_tokens: int,
        guess: Callable[[int, int], int],
        *,
        skill=0.8,
        wrong_ids: Sequence[int] = (3, 7),
        asks_worker: bool = False,
    ) -> None:
        self.max_tokens, self._asks_worker = max_tokens, asks_worker
        self._random, self._guess, self._skill, self._wrong_ids = random, guess, skill, wrong_ids

    def num_from_worker(self, num_requests: int) -> int:
        return self._random.choice((0, self.max_tokens)) if self._asks_worker else 0

    def propose(self, requests: Sequence[Request], result: ModelRunnerOutput) -> Mapping[int, Sequence[int]]:
        return {request.key: self._draft(request) for request in requests if self._random.random() < 0.9}

    def _draft(self, request: Request) -> list[int]:
        num_drafts = self._random.randint(0, self.max_tokens)
        right = (self._guess(request.key, request.num_tokens + place) for place in range(num_drafts))
        return [token if self._random.random() < self._skill else self._random.choice(self._wrong_ids) for token in right]


class KnownTexts(UnjudgedDrafts):
    """Proposes up to 5 tokens of known texts, each of which is right with the probability `skill`.

    Attributes:
        texts: prompt -> the output to expect; requests with other prompts get no drafts.
    """

    max_tokens = 5

    def __init__(self, random: Random, *, skill: float = 0.8) -> None:
        self._random, self._skill = random, skill
        self.texts: dict[tuple[int, ...], Sequence[int]] = {}

    def propose(self, requests: Sequence[Request], result: ModelRunnerOutput) -> Mapping[int, Sequence[int]]:
        return {request.key: self._draft(request) for request in requests}

    def _draft(self, request: Request) -> list[int]:
        output = self.texts.get(tuple(request.token_ids[: request.num_prompt_tokens]), ())
        right = output[request.num_output_tokens :][: self._random.randint(0, self.max_tokens)]
        return [token if self._random.random() < self._skill else 7 for token in right]


class WorkerDrafts(UnjudgedDrafts):
    """Takes what the worker proposes with a result, and keeps the measured steps."""

    max_tokens = 4

    def __init__(self) -> None:
        self.measured: list[MeasuredStep] = []

    def observe(self, step: MeasuredStep) -> None:
        self.measured.append(step)

    def num_from_worker(self, num_requests: int) -> int:
        return self.max_tokens if num_requests < 3 else 1

    def propose(self, requests: Sequence[Request], result: ModelRunnerOutput) -> Mapping[int, Sequence[int]]:
        return result.draft_tokens


class SameDrafts(UnjudgedDrafts):
    """Proposes the same tokens for every request."""

    def __init__(self, *token_ids: int) -> None:
        self.token_ids = token_ids
        self.max_tokens = 8

    def propose(self, requests: Sequence[Request], result: ModelRunnerOutput) -> Mapping[int, Sequence[int]]:
        return {request.key: self.token_ids for request in requests}
