"""When a repetition ends a request."""

import pytest

from tetrad.engine_core_svc.request import RepetitionRule
from tetrad.engine_core_svc.scheduler.stopping import repeats


@pytest.mark.parametrize(
    ("output", "rule", "expected"),
    [
        ([1, 2, 1, 2, 1, 2], RepetitionRule(4, 1, 3), True),
        ([1, 2, 1, 2, 1], RepetitionRule(4, 1, 3), False),
        ([9, 5, 5, 5], RepetitionRule(4, 1, 3), True),
        ([9, 5, 5, 5], RepetitionRule(4, 2, 3), False),
        ([1, 2, 3], RepetitionRule(3, 1, 2), False),
        ([], RepetitionRule(3, 1, 2), False),
    ],
)
def test_repetition_is_a_pattern_that_stands_often_enough_at_the_end(output, rule, expected):
    assert repeats(output, rule) is expected
