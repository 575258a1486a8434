"""SamplingOptions: the flags of `tetrad chat` and `tetrad complete` become fields of a request."""

import argparse

import pytest

from tetrad.cli.sampling_options import add_sampling_options, sampling_fields


@pytest.fixture
def parser():
    parser = argparse.ArgumentParser()
    add_sampling_options(parser)
    return parser


def test_what_is_given_is_a_field(parser):
    options = parser.parse_args(["--temperature", "0.5", "--seed", "7", "--max-tokens", "3"])

    assert sampling_fields(options) == {"temperature": 0.5, "seed": 7, "max_tokens": 3}


@pytest.mark.parametrize("value", ["nan", "inf", "warm"])
@pytest.mark.parametrize("option", ["--temperature", "--top-p"])
def test_what_is_no_finite_number_is_refused_by_its_name(parser, capsys, option, value):
    with pytest.raises(SystemExit):
        parser.parse_args([option, value])

    assert f"argument {option}: {value!r} is no finite number" in capsys.readouterr().err
