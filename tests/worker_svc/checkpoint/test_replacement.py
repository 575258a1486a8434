"""The directory that an update is loaded from: the model's files with other weights."""

import pytest

from tests.e2e.tiny_model import save_tiny_model
from tests.weight_files import save_weights
from tetrad.worker_svc.checkpoint.replacement import laid_out
from tetrad.worker_svc.core.device import LoadRequest


@pytest.fixture
def own(tmp_path):
    (tmp_path / "own").mkdir()
    return save_tiny_model(tmp_path / "own")


@pytest.fixture
def new(own, tmp_path):
    return save_weights(own, tmp_path / "new", 2)


def request_of(path):
    return LoadRequest(str(path), path)


def test_it_has_the_new_weights_and_the_models_own_other_files(own, new):
    (own / "1_Pooling").mkdir()
    (own / "1_Pooling" / "config.json").write_text("{}")
    (own / "2_Dense").mkdir()
    (own / "2_Dense" / "model.safetensors").write_bytes(b"dense")
    (new / "config.json").write_text("another")

    with laid_out(request_of(own), new) as made:
        assert (made / "config.json").read_text() == (own / "config.json").read_text()
        assert (made / "model.safetensors").read_bytes() == (new / "model.safetensors").read_bytes()
        assert (made / "1_Pooling" / "config.json").read_text() == "{}"
        assert (made / "2_Dense" / "model.safetensors").read_bytes() == b"dense"

    assert not made.exists()
    assert (new / "model.safetensors").exists()


def test_a_link_that_leads_out_of_the_model_is_left_out(own, new, tmp_path):
    """As the loaders of the model's directory refuse it."""
    (tmp_path / "secret.json").write_text("secret")
    (own / "preprocessor_config.json").symlink_to(tmp_path / "secret.json")

    with laid_out(request_of(own), new) as made:
        assert not (made / "preprocessor_config.json").exists()
