"""Plug-ins that cannot be used are refused in one line that names their package."""

import pytest

from tetrad.services.errors import ModelError
from tetrad.worker_svc.families.check import check_model

CONFIG = {"architectures": ["FancyForCausalLM"]}


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Installs a package with one module and an entry point for FancyForCausalLM."""
    monkeypatch.syspath_prepend(tmp_path)

    def install_package(name, code):
        (tmp_path / f"{name}.py").write_text(code)
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[tetrad.models]\nFancyForCausalLM = {name}:fancy\n")

    return install_package


def test_two_packages_for_one_architecture(install):
    install("plug_in_one", "def fancy(values): ...")
    install("plug_in_two", "def fancy(values): ...")

    with pytest.raises(ModelError, match=r"plug_in_one, plug_in_two\. Uninstall all but one"):
        check_model(CONFIG, "cpu")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import no_such_module", "plug_in for FancyForCausalLM cannot be imported: No module named 'no_such_module'"),
        ("plain = 1", "cannot be imported: .*has no attribute 'fancy'"),
        ("def fancy(values): return values.need('vocab_size')", "config has no 'vocab_size'"),
        ("def fancy(values): return {}", "describes FancyForCausalLM by dict, not ModelConfig"),
        ("def fancy(values): return 1 / 0", "config cannot be read: division by zero"),
    ],
)
def test_a_package_that_fails(code, reason, install, request):
    name = f"plug_in_{abs(hash(request.node.name))}"
    install(name, code)

    with pytest.raises(ModelError, match=reason.replace("plug_in", name)) as caught:
        check_model(CONFIG, "cpu")

    assert "\n" not in caught.value.message
