"""The fingerprint of a model: equal for equal keys and values only."""

from dataclasses import replace

import pytest

from tests.e2e.tiny_model import save_tiny_model
from tetrad.worker_svc.checkpoint.fingerprint import fingerprint, sample_files
from tetrad.worker_svc.core.device import LoadRequest, NewWeights


@pytest.fixture
def request_for(tmp_path):
    def make(name: str, **changes) -> LoadRequest:
        (tmp_path / name).mkdir()
        return LoadRequest(name, save_tiny_model(tmp_path / name, **changes))

    return make


def whole_fingerprint(request, layout=()):
    return fingerprint(request, sample_files(request), layout)


def test_copies_of_a_model_are_equal_wherever_they_are(request_for):
    assert whole_fingerprint(request_for("a"), (16,)) == whole_fingerprint(request_for("b"), (16,))


def test_another_layout_is_another_fingerprint(request_for):
    assert whole_fingerprint(request_for("a"), (16,)) != whole_fingerprint(request_for("b"), (32,))


def test_another_option_is_another_fingerprint(request_for):
    request = request_for("a")
    assert whole_fingerprint(request) != whole_fingerprint(replace(request, quantization="int8"))


def test_other_weights_in_files_of_the_same_size_are_another_fingerprint(request_for):
    first, second = request_for("a"), request_for("b")
    before = whole_fingerprint(second)
    weights = next(second.path.glob("*.safetensors"))
    content = bytearray(weights.read_bytes())
    content[-40_000:] = bytes(40_000)
    weights.write_bytes(content)
    assert whole_fingerprint(first) == before
    assert whole_fingerprint(second) != before


def test_one_other_matrix_in_a_large_file_is_another_fingerprint(request_for):
    mebibyte, found = 1 << 20, []
    for name, changed in (("a", b"\0"), ("b", b"\1")):
        request = request_for(name)
        with (request.path / "model.safetensors").open("wb") as weights:
            weights.truncate(100 * mebibyte)
            weights.seek(8 * mebibyte)
            weights.write(changed * 2 * mebibyte)
        found.append(whole_fingerprint(request))

    assert found[0] != found[1]


def test_a_model_with_the_weights_of_an_update_is_like_one_that_was_started_with_them(request_for):
    first, second = request_for("a"), request_for("b")
    (second.path / "model.safetensors").write_bytes(bytes(range(256)) * 400)
    updated = replace(first, weights=NewWeights(str(second.path), "1"))

    assert whole_fingerprint(updated) == whole_fingerprint(second) != whole_fingerprint(first)
