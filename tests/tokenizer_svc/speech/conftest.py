"""A tiny Whisper model, and its tokenizer."""

import pytest

from tests.whisper_files import save_whisper
from tetrad.tokenizer_svc.loading.load import load_tokenizer


@pytest.fixture(scope="session")
def whisper(tmp_path_factory):
    """The directory of a model."""
    path = tmp_path_factory.mktemp("whisper")
    save_whisper(path)
    return path


@pytest.fixture(scope="session")
def whisper_tokenizer(whisper):
    return load_tokenizer(str(whisper))
