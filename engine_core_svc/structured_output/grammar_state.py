"""Grammar state: the position of one request in its language, and the tokens that may follow.

Made when its grammar is compiled, dropped when the request ends; it survives preemption and the loss of a worker. Used by one
thread at a time: by the filler's from `advance` until its masks are ready, by the event loop otherwise.

When no token is allowed, the request ends: normally if its text is complete, otherwise with an error. So a text without a
continuation ends at once, without an EOS token, also where EOS is excluded (ignore_eos, min_tokens).
"""

from collections.abc import Sequence
from copy import copy

from llguidance import LLMatcher

from tetrad.engine_core_svc.structured_output.beginning import Beginning, Phase
from tetrad.engine_core_svc.structured_output.compiled import CompiledGrammar, plain_error
from tetrad.engine_core_svc.structured_output.constraint import Constraint, refusal
from tetrad.engine_core_svc.structured_output.stretch_end import stretch_end
from tetrad.engine_core_svc.structured_output.vocabulary import Words
from tetrad.services.errors import TetradError


class GrammarState:
    """The position of one request in its language.

    Args:
        constraint: the request's constraint.
        grammar: the grammar of the constraint's language.

    Attributes:
        vocabulary: the model's vocabulary.
        mask: tokens that may be sampled next [num_words]; replaced, never changed.
        draft_masks: tokens that may be sampled after each draft, for the drafts that the language allows.
        is_complete: whether the text is complete and has no continuation.
        error: the reason why the request cannot continue; None: it can.
    """

    def __init__(self, constraint: Constraint, grammar: CompiledGrammar) -> None:
        vocabulary = self.vocabulary = grammar.vocabulary
        self.matcher: LLMatcher = grammar.new_matcher()
        self.is_complete = False
        self.error: TetradError | None = None
        end = stretch_end(constraint.start_after, vocabulary) if constraint.start_after else None
        self._beginning = Beginning(constraint.opening, end)
        self._fits = True  # while UNDECIDED: whether the output so far also begins a text of the language
        self._min_tokens = constraint.min_tokens
        self._num_tokens = 0
        self._eos = vocabulary.ids_mask(vocabulary.eos_token_ids)
        self._excluded = self._eos if constraint.ignore_eos else None
        self._ends = vocabulary.ids_mask((*vocabulary.eos_token_ids, *constraint.stop_token_ids)) if self._min_tokens else None
        self._allowed = vocabulary.ids_mask(constraint.allowed_token_ids) if constraint.allowed_token_ids else None
        self._first_mask = grammar.first_mask
        self.draft_masks: Sequence[Words] = ()
        self.mask: Words = self._first_mask
        self.set_mask(self._first_mask)

    def allows(self, token_id: int) -> bool:
        """Return whether the present mask allows a token id."""
        return _has(self.mask, token_id)

    def find_misfit(self, token_ids: Sequence[int]) -> int | None:
        """Return the first of these tokens (drafts and the token after them) that its mask excludes; None: all are allowed."""
        rows = zip(token_ids, self.masks, strict=False)
        return next((token_id for token_id, mask in rows if not _has(mask, token_id)), None)

    @property
    def masks(self) -> Sequence[Words]:
        """The masks for each draft, and for the token after the last one."""
        return self.mask, *self.draft_masks

    @property
    def needs_mask(self) -> bool:
        """Whether the matcher must compute the next mask: the language has begun, and the text can continue."""
        return self._follows and not self.is_complete and self.error is None

    def advance(self, token_ids: Sequence[int]) -> None:
        """Advance by tokens that the request has sampled."""
        for token_id in token_ids:
            self._num_tokens += 1
            before = self._beginning.phase
            self._beginning.take(token_id)
            if before is not Phase.WAITING and not self._try_follow(token_id, self._beginning.phase):
                self._fail()
                return
        # A matcher at the end of its language allows only EOS.
        self.is_complete = self._follows and self.matcher.is_stopped()
        if not self._follows:
            self.set_mask(self._first_mask)

    def look_ahead(self, draft_ids: Sequence[int]) -> "Sequence[GrammarState]":
        """Return the states after each of these drafts, as far as the text can continue; their masks are not computed yet."""
        states: list[GrammarState] = []
        last = self
        for draft_id in draft_ids:
            if last.is_complete or last.error is not None:
                break
            last = last._copy()
            last.advance([draft_id])
            states.append(last)
        return states

    def note_drafts(self, draft_ids: Sequence[int], states: "Sequence[GrammarState]") -> None:
        """Keep the masks after the drafts that may be verified, given the states of `look_ahead` with their masks.

        A draft is not verified if its mask excludes it, or if the text ends with it: no token may be sampled after it.
        """
        masks: list[Words] = []
        last = self
        for draft_id, state in zip(draft_ids, states, strict=False):
            if not last.allows(draft_id) or state.is_complete or state.error is not None:
                break
            masks.append(state.mask)
            last = state
        self.draft_masks = masks

    def set_mask(self, mask: Words) -> None:
        """Set the next mask from the grammar's mask, restricted to the tokens that the request may sample at all."""
        if self.matcher.is_error():
            self._fail()
            return
        waiting_mask = self._beginning.waiting_mask
        if waiting_mask is not None:
            mask = waiting_mask
        opening_id = self._beginning.next_opening_id
        if opening_id is not None:
            opening = self.vocabulary.ids_mask([opening_id])
            mask = mask | opening if self._fits else opening
        if self._excluded is not None:
            mask = mask & ~self._excluded
        if self._ends is not None and self._num_tokens < self._min_tokens:
            mask = mask & ~self._ends
        if self._allowed is not None:
            mask = mask & self._allowed
        self.mask = mask
        if not mask.any():
            self._end()

    @property
    def _follows(self) -> bool:
        """Whether the output so far is text of the language, apart from a stretch before it."""
        return self._beginning.phase is Phase.BEGUN or (self._beginning.phase is Phase.UNDECIDED and self._fits)

    def _try_follow(self, token_id: int, phase: Phase) -> bool:
        """Advance the matcher by a token that is not in a stretch before the language; return False if the matcher fails."""
        match phase:
            case Phase.BEGUN:
                return bool(self.matcher.consume_token(token_id))
            case Phase.UNDECIDED:
                self._fits = self._fits and self.matcher.try_consume_tokens([token_id]) == 1
            case Phase.WAITING:  # the token completes the opening, which is not text of the language
                self.matcher.reset()
        return True

    def _copy(self) -> "GrammarState":
        state = copy(self)
        state.matcher = self.matcher.deep_copy()
        state._beginning = self._beginning.copy()  # noqa: SLF001 - of this class
        return state

    def _fail(self) -> None:
        """End the request: its matcher has failed. Its tokens were allowed, so the matcher has exceeded a limit."""
        self.error = refusal(f"The constraint became too costly to follow: {plain_error(self.matcher.get_error())}")

    def _end(self) -> None:
        if self._follows and self.matcher.is_accepting():
            self.is_complete = True
        else:
            self.error = refusal(
                f"After {self._num_tokens} tokens nothing is left to sample: what the constraint allows is excluded by "
                "allowed_token_ids, min_tokens or ignore_eos."
            )


def _has(mask: Words, token_id: int) -> bool:
    word = token_id >> 5
    return word < len(mask) and bool(mask[word] >> (token_id & 31) & 1)
