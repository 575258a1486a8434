"""The registry of LoRA adapters: numbers and names of adapters, and their versions."""

import pytest

from tests.engine_core_svc.scheduler.fake_lora_engine import FakeLoraEngine, ref
from tetrad.engine_core_svc.engine.adapters_wire import encode_lora_list
from tetrad.engine_core_svc.scheduler import adapter_registry as module
from tetrad.services.errors import FailedPrecondition, InvalidRequest, NotFound, Overloaded
from tetrad.services.message_size import BATCH_BYTES, LEAST_MAX_MESSAGE_BYTES
from tetrad.v1.engine_core_pb2 import SchedulerStats

# --- names ---------------------------------------------------------------------------------------------------------------


def test_a_number_means_one_adapter():
    engine = FakeLoraEngine()
    adapter = engine.adapters.resolve(ref(1))

    assert engine.adapters.resolve(ref(1)) is adapter
    assert engine.adapters.registry.get(1) is adapter
    assert list(engine.adapters.registry) == [adapter]
    with pytest.raises(InvalidRequest, match="Adapter id 1 is 'a1' at /a1, not 'b' at /a1") as refused:
        engine.adapters.resolve(ref(1, name="b"))
    assert refused.value.field == "lora_request"


def test_a_request_that_names_the_path_before_a_replacement_runs_with_the_new_version():
    """Its frontend did not know of the replacement yet. One that has begun must not go on with other files."""
    engine = FakeLoraEngine()
    engine.adapters.resolve(ref(1))
    new = engine.adapters.registry.add(ref(1, path="/new"))
    engine.adapters.registry.replace(new)

    assert engine.adapters.resolve(ref(1)) is new
    assert engine.adapters.resolve(ref(1, path="/new")) is new
    for wrong, options in ((ref(1), {"resumed": True}), (ref(1, name="b"), {}), (ref(1, path="/other"), {})):
        with pytest.raises(InvalidRequest, match="Adapter id 1 is 'a1' at /new, not"):
            engine.adapters.resolve(wrong, **options)


def test_keys_of_versions_differ():
    engine = FakeLoraEngine()
    adapters = [engine.adapters.resolve(ref(number)) for number in (1, 2, 3)]

    assert [adapter.key - adapters[0].key for adapter in adapters] == [0, 1, 2]
    assert 1 <= adapters[0].key < 1 << 30


@pytest.mark.parametrize("fields", [{"lora_id": 0}, {"name": ""}, {"path": ""}])
def test_an_adapter_has_a_name_a_path_and_a_number(fields):
    with pytest.raises(InvalidRequest, match="lora_request needs a name, a path and an id of at least 1"):
        FakeLoraEngine().adapters.registry.add(ref(7, **fields))


def test_the_smallest_number_is_1():
    assert FakeLoraEngine().adapters.registry.add(ref(1)).is_current


def test_as_many_adapters_are_known_as_the_limit_says(monkeypatch):
    monkeypatch.setattr(module, "_MAX_KNOWN", 2)
    engine = FakeLoraEngine()
    for number in (1, 2):
        engine.adapters.resolve(ref(number))

    with pytest.raises(Overloaded, match="2 adapters are known") as refused:
        engine.adapters.resolve(ref(3))
    assert refused.value.retry_after_s == 1.0


@pytest.mark.parametrize(("field", "most"), [("name", 512), ("path", 2048), ("base_model_name", 512)])
def test_what_an_adapter_is_called_has_a_limit(field, most):
    registry = FakeLoraEngine().adapters.registry
    registry.add(ref(1, **{field: "é" * (most // 2)}))

    with pytest.raises(InvalidRequest, match=f"lora_request.{field} has {most + 2} bytes of UTF-8, the limit is {most}"):
        registry.add(ref(2, **{field: "é" * (most // 2 + 1)}))


def test_messages_of_the_smallest_limit_list_all_adapters_and_have_a_steps_statistics():
    """With the longest names, and as many as the engine core takes."""
    engine = FakeLoraEngine(max_loras=10_000, max_cpu_loras=10_000)
    names = {"name": "n" * 512, "path": "p" * 2048, "base_model_name": "b" * 512}
    adapters = [engine.adapters.registry.add(ref(number, **names)) for number in range(1, 10_001)]
    for adapter in adapters:
        adapter.num_admitted = 1

    pages = [encode_lora_list(adapters[::-1], 0)]
    while pages[-1].has_more:
        pages.append(encode_lora_list(adapters[::-1], pages[-1].loras[-1].id))
    stats = SchedulerStats(running_lora_adapters=engine.adapters.running_names)

    assert [lora.id for page in pages for lora in page.loras] == list(range(1, 10_001))
    assert max(page.ByteSize() for page in pages) < LEAST_MAX_MESSAGE_BYTES
    assert stats.ByteSize() <= BATCH_BYTES // 10


def test_an_unknown_number_is_named():
    for call in (
        FakeLoraEngine().adapters.registry.get,
        FakeLoraEngine().adapters.registry.remove,
        FakeLoraEngine().adapters.pin,
    ):
        with pytest.raises(NotFound, match="no adapter with id 5") as missing:
            call(5)
        assert missing.value.reason == "LORA_NOT_FOUND"


def test_an_adapter_that_requests_have_is_not_forgotten():
    engine = FakeLoraEngine()
    adapter = engine.request(1).adapter
    engine.adapters.registry.discard(adapter)

    assert list(engine.adapters.registry) == [adapter]


# --- versions ------------------------------------------------------------------------------------------------------------


def replaced(engine):
    """Replace a1; return both versions."""
    before = engine.adapters.registry.get(1)
    after = engine.adapters.registry.add(ref(1, load_inplace=True))
    engine.adapters.want(after)
    engine.adapters.loaded(after, b"2")
    engine.adapters.registry.replace(after)
    return before, after


def test_new_requests_get_the_new_version_and_the_old_one_goes_at_once_if_nobody_has_it():
    engine = FakeLoraEngine(max_cpu_loras=3)
    engine.load(1)
    engine.adapters.pin(1)
    before, after = replaced(engine)

    assert engine.adapters.resolve(ref(1)) is after
    assert (before.is_current, before.is_pinned, after.is_current, after.is_pinned) == (False, False, True, True)
    assert (engine.evicted, before.is_resident) == (["a1"], False)
    assert list(engine.adapters.registry) == [after]


def test_a_version_is_not_current_before_it_replaces_another():
    engine = FakeLoraEngine()
    engine.load(1)
    after = engine.adapters.registry.add(ref(1))

    assert not after.is_current
    assert engine.adapters.registry.get(1) is not after
    engine.adapters.registry.discard(after)
    assert engine.adapters.registry.get(1).is_current


def test_replacing_a_version_by_itself_keeps_it():
    engine = FakeLoraEngine()
    engine.load(1)
    adapter = engine.adapters.pin(1)
    engine.adapters.registry.replace(adapter)

    assert (adapter.is_current, adapter.is_pinned, adapter.is_resident, engine.evicted) == (True, True, True, [])


def test_the_old_version_stays_for_those_that_have_it():
    engine = FakeLoraEngine(max_loras=2, max_cpu_loras=3)
    engine.load(1)
    request = engine.request(1)
    before, _ = replaced(engine)

    assert (engine.evicted, before.is_resident) == ([], True)
    request.last_step_id, engine.returned = 7, 6
    engine.end(request)
    assert engine.evicted == []
    engine.returned = 7
    engine.adapters.note_step()
    assert engine.evicted == ["a1"]
    engine.adapters.note_step()
    assert engine.evicted == ["a1"]


def test_an_adapter_in_use_is_not_removed():
    engine = FakeLoraEngine()
    engine.load(1)
    request = engine.request(1)

    with pytest.raises(FailedPrecondition, match="'a1' is in use by 1 unfinished requests") as refused:
        engine.adapters.registry.remove(1)
    assert refused.value.reason == "LORA_IN_USE"
    engine.end(request)
    assert engine.adapters.registry.remove(1) is request.adapter
    assert (engine.evicted, list(engine.adapters.registry), request.adapter.is_current) == (["a1"], [], False)


def test_an_adapter_that_is_not_on_the_worker_is_forgotten_without_a_word():
    engine = FakeLoraEngine()
    engine.adapters.resolve(ref(1))
    engine.adapters.registry.remove(1)

    assert engine.evicted == []
    assert engine.adapters.resolve(ref(1)).is_current
