"""Drafts of constrained requests: each has a mask of its own, and none is verified that the constraint excludes."""

import pytest

from tests.engine_core_svc.scheduler.fake_drafts import SameDrafts
from tetrad.engine_core_svc.core.plan import FinishReason


def ids_of(vocabulary, text):
    return vocabulary.tokens.tokenize_str(text)


@pytest.fixture
def make_spelling(make_bench, vocabulary):
    """Return a maker of benches whose worker spells a text as far as it is allowed to, and that proposes another one."""

    def make(text, draft):
        bench = make_bench(drafts=SameDrafts(*ids_of(vocabulary, draft)))
        ids = ids_of(vocabulary, text)

        def verify(key, draft_ids, masks):
            tokens = [ids[min(bench.worker_lengths[key] - 5 + place, len(ids) - 1)] for place in range(len(draft_ids) + 1)]
            assert all(token in allowed for token, allowed in zip(tokens, masks, strict=True))
            num_right = next((i for i, draft_id in enumerate(draft_ids) if draft_id != tokens[i]), len(draft_ids))
            return tokens[: num_right + 1]

        bench._verify = verify
        return bench

    return make


def test_each_draft_of_a_constrained_request_has_a_mask_of_its_own(make_spelling, compiled, vocabulary):
    bench = make_spelling("abcd", "bc")
    request = bench.add_constrained(5, compiled("choice", '["abcd", "abce"]'))
    bench.step()

    plan = bench.plan()

    assert plan.grammar_masks.keys == [request.key] * 3
    assert bench.masks(plan)[request.key] == [ids_of(vocabulary, "b"), ids_of(vocabulary, "c"), ids_of(vocabulary, "de")]


def test_drafts_that_the_constraint_excludes_are_not_verified(make_spelling, compiled, vocabulary):
    bench = make_spelling("abcd", "bxd")
    request = bench.add_constrained(5, compiled("choice", '["abcd", "abce"]'))
    bench.step()

    assert bench.plan().draft_tokens == {request.key: tuple(ids_of(vocabulary, "b"))}


def test_a_draft_that_ends_the_text_is_not_verified(make_spelling, compiled, vocabulary):
    """Nothing may be sampled behind it."""
    bench = make_spelling("abcd", "bcd")
    request = bench.add_constrained(5, compiled("choice", '["abcd"]'))
    bench.step()

    plan = bench.plan()
    outputs = bench.deliver()

    assert plan.draft_tokens == {request.key: tuple(ids_of(vocabulary, "bc"))}
    assert [output.finish_reason for output in outputs] == [None, FinishReason.STOP]
    assert request.token_ids[5:] == ids_of(vocabulary, "abcd")


def test_a_token_behind_drafts_that_its_mask_excludes_fails_its_request(make_spelling, compiled, vocabulary):
    bench = make_spelling("abcd", "b")
    request = bench.add_constrained(5, compiled("choice", '["abcd"]'))
    bench.step()
    bench.plan()

    [output] = bench.deliver({request.key: ids_of(vocabulary, "bx")})

    assert output.finish_reason is FinishReason.ERROR
    assert "does not allow" in output.error.message
