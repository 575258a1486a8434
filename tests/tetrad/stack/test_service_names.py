"""Names of services: their kind and their number."""

import pytest

from tetrad.stack.service_names import HEALTH_NAMES, kind_of, number_of, numbered


@pytest.mark.parametrize("kind", HEALTH_NAMES)
@pytest.mark.parametrize("number", [0, 1, 11])
def test_a_name_says_the_kind_and_the_number(kind, number):
    name = numbered(kind, number)

    assert (kind_of(name), number_of(name)) == (kind, number)


def test_the_first_of_a_kind_has_a_plain_name():
    assert [numbered("worker", number) for number in range(3)] == ["worker", "worker-2", "worker-3"]
