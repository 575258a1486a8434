"""The children of a stack: their names, the settings that connect them, and how tests change them. Nothing is started."""

from dataclasses import replace

import pytest

from tetrad.engine_core_svc.config import EngineCoreSettings
from tetrad.frontend.config import FrontendSettings
from tetrad.services.errors import InvalidRequest
from tetrad.stack.lifeline import Lifeline
from tetrad.stack.model_place import model_places
from tetrad.stack.public_ports import PublicPorts
from tetrad.stack.service_children import ServiceChildren
from tetrad.stack.stack_log import StackLog
from tetrad.stack.stack_settings import StackSettings
from tetrad.tokenizer_svc.config import TokenizerSettings
from tetrad.worker_svc.config import WorkerSettings

SETTINGS = StackSettings(
    TokenizerSettings(model="m"),
    EngineCoreSettings(model="m"),
    WorkerSettings(device="sim", metrics_port=9000),
    FrontendSettings(port=0),
    data_parallel_size=2,
    api_server_count=2,
)


@pytest.fixture
def children_of(tmp_path):
    """`children_of(serve=..., settings=..., **options)` gives the children of a stack."""
    lifeline, any_ports = Lifeline(), PublicPorts("127.0.0.1", 0, None)

    def make(*, serve=True, settings=SETTINGS, ports=any_ports, **options):
        places = list(model_places(tmp_path, [(model, 1) for model in settings.models]))
        shown = ports if serve else None
        return ServiceChildren(settings, places, tmp_path, lifeline, ports=shown, log=StackLog(tmp_path), **options)

    yield make
    any_ports.close()
    lifeline.close()


def all_of(children):
    return [*children.frontends(), *children.engine_cores(), *children.workers(), *children.tokenizers()]


@pytest.mark.parametrize(
    ("worker", "engine_core", "text"),
    [
        (65535, None, "metrics_port 65535 leaves no port for worker-2, which would have 65536; the largest is 65535"),
        (9000, 9001, "metrics_port 9000: port 9001 would be that of engine-core and of worker-2; choose ports further apart"),
    ],
    ids=["too large", "twice"],
)
def test_metrics_ports_that_not_all_services_can_have_are_refused(children_of, worker, engine_core, text):
    settings = replace(
        SETTINGS,
        worker=WorkerSettings(device="sim", metrics_port=worker),
        engine_core=EngineCoreSettings(model="m", metrics_port=engine_core),
    )

    with pytest.raises(InvalidRequest, match=text):
        all_of(children_of(settings=settings))


def test_free_ports_are_known_before_a_frontend_listens(children_of):
    """`tetrad serve` announces them."""
    ports = PublicPorts("127.0.0.1", 0, 0)

    found = children_of(ports=ports).frontend_settings

    ports.close()
    assert (found.port, found.grpc_port) == (ports.port, ports.grpc_port)


@pytest.mark.parametrize(
    ("options", "groups"),
    [
        ({}, [["worker"], ["worker-2"]]),
        ({"tensor_parallel_size": 2}, [["worker", "worker-2"], ["worker-3", "worker-4"]]),
        ({"pipeline_parallel_size": 2, "data_parallel_size": 1}, [["worker", "worker-2"]]),
        ({"engine_core": EngineCoreSettings(model="m", enable_expert_parallel=True)}, [["worker", "worker-2"]]),
    ],
    ids=["engine cores", "shards", "stages", "shared experts"],
)
def test_workers_that_compute_one_model_together_restart_together(children_of, options, groups):
    settings = replace(SETTINGS, worker=WorkerSettings(device="cpu"), **options)

    assert children_of(settings=settings).worker_groups() == groups


def test_each_service_has_its_name_and_its_program(children_of):
    names = {child.name: (child.program, child.command[-1]) for child in all_of(children_of())}

    assert names == {
        "frontend": ("frontend", "tetrad.frontend"),
        "frontend-2": ("frontend", "tetrad.frontend"),
        "engine-core": ("engine-core", "tetrad.engine_core_svc"),
        "engine-core-2": ("engine-core", "tetrad.engine_core_svc"),
        "worker": ("worker", "tetrad.worker_svc"),
        "worker-2": ("worker", "tetrad.worker_svc"),
        "tokenizer": ("tokenizer", "tetrad.tokenizer_svc"),
    }


def test_a_stack_without_public_ports_has_no_frontend(children_of):
    assert children_of(serve=False).frontends() == []


def test_services_find_each_other_by_their_settings(children_of, tmp_path):
    children = children_of()

    assert children.frontend_settings.engine_targets == (
        f"unix:{tmp_path}/engine-core.sock",
        f"unix:{tmp_path}/engine-core-2.sock",
    )
    assert children.engine_cores()[1].environment["TETRAD_ENGINE_CORE_WORKER_TARGET"] == f"unix:{tmp_path}/worker-2.sock"
    assert [child.environment["TETRAD_WORKER_METRICS_PORT"] for child in children.workers()] == ["9000", "9001"]


def test_a_successor_of_a_frontend_has_its_name_and_a_socket_of_its_own(children_of):
    children = children_of()
    first, _ = children.frontends()

    successor = children.frontend(0)

    assert successor.name == first.name
    assert successor.health.address.endswith("/frontend-3.sock")
    assert first.health.address.endswith("/frontend.sock")


def test_settings_and_children_can_be_adapted(children_of):
    children = children_of(
        adapt=lambda name, settings: settings.model_copy(update={"log_level": "debug"}) if name == "worker" else settings,
        adapt_child=lambda child: replace(child, program=f"old {child.program}"),
    )

    workers = children.workers()

    assert [worker.environment.get("TETRAD_WORKER_LOG_LEVEL") for worker in workers] == ["debug", None]
    assert [worker.program for worker in workers] == ["old worker", "old worker"]


def test_a_frontend_drains_for_the_time_that_its_settings_choose(children_of):
    chosen = FrontendSettings(port=0, drain_timeout_s=60.0, withdrawal_wait_s=5.0)

    [child, _] = children_of(settings=replace(SETTINGS, frontend=chosen)).frontends()

    assert child.environment["TETRAD_FRONTEND_DRAIN_TIMEOUT_S"] == "60.0"
    assert child.stop_timeout_s > 65


def test_a_frontend_drains_briefly_if_no_time_is_chosen(children_of):
    """`tetrad serve` then ends within 5 s."""
    [child, _] = children_of().frontends()

    assert float(child.environment["TETRAD_FRONTEND_DRAIN_TIMEOUT_S"]) < child.stop_timeout_s < 2


def test_another_service_drains_for_the_time_that_its_settings_choose_as_well(children_of):
    chosen = {
        "tokenizer": TokenizerSettings(model="m", drain_timeout_s=7.0),
        "engine_core": EngineCoreSettings(model="m", drain_timeout_s=8.0),
        "worker": WorkerSettings(device="sim", drain_timeout_s=9.0),
    }
    children = children_of(settings=replace(SETTINGS, **chosen))

    [tokenizer], engine_core, worker = children.tokenizers(), children.engine_cores()[0], children.workers()[0]

    assert tokenizer.environment["TETRAD_TOKENIZER_DRAIN_TIMEOUT_S"] == "7.0"
    assert engine_core.environment["TETRAD_ENGINE_CORE_DRAIN_TIMEOUT_S"] == "8.0"
    assert worker.environment["TETRAD_WORKER_DRAIN_TIMEOUT_S"] == "9.0"
    assert [child.stop_timeout_s > time for child, time in ((tokenizer, 7), (engine_core, 8), (worker, 9))] == [True] * 3


def test_another_service_drains_briefly_if_no_time_is_chosen(children_of):
    children = children_of()

    others = [*children.tokenizers(), *children.engine_cores(), *children.workers()]

    times = [next(float(value) for name, value in child.environment.items() if "DRAIN" in name) for child in others]
    assert max(times) < 1
    assert {child.stop_timeout_s for child in others} == {None}


def test_frontends_listen_on_the_socket_of_the_stack_and_not_on_a_port(children_of, tmp_path):
    path = tmp_path / "http.sock"
    ports = PublicPorts("no host", 8000, None, uds=path)

    children = children_of(ports=ports, settings=replace(SETTINGS, frontend=FrontendSettings(uds=path)))

    variables = [child.environment for child in children.frontends()]
    assert [each["TETRAD_FRONTEND_HTTP_FD"] for each in variables] == [str(ports.http_fd)] * 2
    assert [each["TETRAD_FRONTEND_UDS"] for each in variables] == [str(path)] * 2
    ports.close()
    assert not path.exists()


def test_frontends_read_the_largest_messages_of_their_models(children_of):
    texts, photos = FrontendSettings(served_model_names=("texts",)), FrontendSettings(served_model_names=("photos",))
    further = replace(SETTINGS, frontend=photos.model_copy(update={"max_message_bytes": 256 << 20}))

    children = children_of(settings=replace(SETTINGS, frontend=texts, further=(further,)))

    assert {each.environment["TETRAD_FRONTEND_MAX_MESSAGE_BYTES"] for each in children.frontends()} == {str(256 << 20)}
