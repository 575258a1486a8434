"""The file of the last update of the weights: read by the next engine core of the same model, and never an obstacle."""

import pytest

from tetrad.engine_core_svc.worker.group import NewWeights
from tetrad.engine_core_svc.worker.weights_file import WeightsFile

UPDATE = NewWeights("/checkpoints/100", "u1", ("d0", "d1"))


def test_the_last_update_is_read_back(tmp_path):
    WeightsFile(tmp_path / "weights", "model").save(NewWeights("/checkpoints/99", "u0", ("", "")), "old")
    WeightsFile(tmp_path / "weights", "model").save(UPDATE, "step-100")

    assert WeightsFile(tmp_path / "weights", "model").load(2) == (UPDATE, "step-100")
    assert [path.name for path in tmp_path.iterdir()] == ["weights"]


@pytest.mark.parametrize(("model", "num_ranks"), [("other", 2), ("model", 1)])
def test_an_update_of_another_model_or_number_of_ranks_is_not_read(tmp_path, model, num_ranks):
    WeightsFile(tmp_path / "weights", "model").save(UPDATE, "step-100")

    assert WeightsFile(tmp_path / "weights", model).load(num_ranks) is None


@pytest.mark.parametrize("text", [None, "", "[]", "{", '{"path": "a"}', "[" * 5000])
def test_without_a_readable_file_there_is_no_update(tmp_path, text):
    if text is not None:
        (tmp_path / "weights").write_text(text)

    assert WeightsFile(tmp_path / "weights", "model").load(2) is None


def test_a_file_that_cannot_be_written_is_no_error(tmp_path):
    file = WeightsFile(tmp_path / "none" / "weights", "model")

    file.save(UPDATE, "step-100")

    assert file.load(2) is None
