"""The settings and figures of docs/routing.md are those of the code."""

from tests.documents import Page
from tetrad.engine_core_svc.kv_cache.event_log import KvEventLog
from tetrad.frontend.config import FrontendSettings
from tetrad.frontend.routing import prefix_memory, router
from tetrad.services.settings import load_settings

PAGE = Page.of("docs/routing.md")


def test_the_file_that_is_shown_can_be_loaded(tmp_path):
    [shown] = PAGE.blocks("yaml")
    path = tmp_path / "frontend.yaml"
    path.write_text(shown)

    settings = load_settings(FrontendSettings, ["--config", str(path)], prog="tetrad frontend")

    assert settings.engine_targets == ("dns:///engine-core:50052",)


def test_a_name_without_a_port_is_refused_in_one_line(capsys):
    argv = ["--engine-targets", "dns:///engine-core"]

    try:
        load_settings(FrontendSettings, argv, prog="t")
    except SystemExit as end:
        assert end.code == 2

    assert capsys.readouterr().err.startswith("t: engine-targets: dns:///engine-core is no address: dns:///name:port")


def test_its_figures_are_the_settings_and_the_constants():
    fields = FrontendSettings.model_fields

    assert f"`--prefix-affinity` ({fields['prefix_affinity'].default:g})" in PAGE.text
    assert f"`--dns-refresh-interval-s` ({fields['dns_refresh_interval_s'].default:g} s)" in PAGE.text
    assert f"from half of the prompt and {router._MIN_SHARED_TOKENS} tokens on" in PAGE.text
    assert router._MIN_SHARE == 0.5
    assert f"*w*/{1 / router._HOME_SHARE:g}" in PAGE.text
    assert f"At most {prefix_memory._MAX_BLOCKS:,} blocks" in PAGE.text
    assert f"({KvEventLog(16, epoch=0)._max_kept_blocks:,}\nblocks)" in PAGE.text
