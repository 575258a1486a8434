"""Media processes import single modules of transformers; the rest of the package is not loaded."""

import subprocess
import sys

import pytest

from tetrad.tokenizer_svc.media.images.pil_processor import CLASSES

_START = """
import sys
sys.modules['torch'] = sys.modules['torchvision'] = None
from tetrad.tokenizer_svc.media.bare_transformers import with_bare_transformers
"""
_NOTHING_LISTED = """
import transformers
assert type(transformers).__name__ == 'module' and not hasattr(transformers, 'AutoModel')
"""
_FAILS_WHEN_BARE = """
@with_bare_transformers
def make():
    import tetrad.tokenizer_svc.media.audio.extractor
    from transformers import AutoConfig
    return AutoConfig

assert make().__module__ == "transformers.models.auto.configuration_auto"
"""


def run(*code: str) -> None:
    subprocess.run([sys.executable, "-c", "\n".join([_START, *code])], check=True)


@pytest.mark.parametrize(
    "modules",
    [
        pytest.param(
            [f"transformers.models.{name}.image_processing_pil_{name}" for name in CLASSES.values()], id="image processors"
        ),
        pytest.param(["tetrad.tokenizer_svc.media.audio.extractor", "tetrad.tokenizer_svc.speech.pieces"], id="sounds"),
    ],
)
def test_modules_are_imported_and_nothing_is_listed(modules):
    imports = f"with_bare_transformers(lambda: [__import__(name) for name in {modules}])()"

    run(imports, _NOTHING_LISTED)


def test_a_version_that_needs_the_whole_package_is_imported_whole():
    run(_FAILS_WHEN_BARE)
