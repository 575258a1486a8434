"""LoRARequest: the values that name an adapter."""

import pytest

from tetrad.frontend.request.outputs import LoRARequest
from tetrad.services.errors import InvalidRequest


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (("sql", 0, "/sql"), r"lora_int_id must be in \[1, 4294967295\], got 0\."),
        (("sql", -1, "/sql"), r"lora_int_id must be in \[1, 4294967295\], got -1\."),
        (("sql", 2**32, "/sql"), r"lora_int_id must be in \[1, 4294967295\], got 4294967296\."),
        (("sql", "1", "/sql"), r"lora_int_id must be an integer, got '1'\."),
        (("sql\ud800", 1, "/sql"), r"lora_name contains the lone surrogate U\+D800 at character 3"),
        (("sql", 1, None), r"lora_path must be a string, got None\."),
    ],
)
def test_an_adapter_that_no_engine_core_can_have_is_refused(values, text):
    """The id 0 is that of the base model."""
    with pytest.raises(InvalidRequest, match=text):
        LoRARequest(*values)
