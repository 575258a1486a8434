"""Media processes import what they need of transformers, without its lists of models and of packages."""

import subprocess
import sys

import pytest

from tetrad.tokenizer_svc.media.images.pil_processor import CLASSES

_HIDDEN = "import sys; sys.modules['torch'] = sys.modules['torchvision'] = None"
_BARE = "from tetrad.tokenizer_svc.media.bare_transformers import use_bare_transformers; use_bare_transformers()"
_NOTHING_LISTED = (
    "from transformers.utils import import_utils",
    "assert import_utils.PACKAGE_DISTRIBUTION_MAPPING == {}",
    "import transformers",
    "assert type(transformers).__name__ == 'module' and not hasattr(transformers, 'AutoModel')",
)


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
    code = "\n".join([_HIDDEN, _BARE, *(f"import {module}" for module in modules), *_NOTHING_LISTED])

    subprocess.run([sys.executable, "-c", code], check=True)
