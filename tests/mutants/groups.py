"""Groups: the files of the engine core that get bugs, and the test modules that must find them.

Most of them are unit tests; those of a service run it in their own process.
"""

from dataclasses import dataclass

PACKAGE = "tetrad/engine_core_svc"
TESTS = "tests/engine_core_svc"


@dataclass(frozen=True)
class Group:
    """Files, as patterns below PACKAGE, and modules below TESTS."""

    name: str
    files: tuple[str, ...]
    tests: tuple[str, ...]


GROUPS = (
    Group(
        "scheduler",
        ("scheduler/*.py",),
        (
            "test_crash_isolation.py",
            "test_drafting.py",
            "test_fan_outs.py",
            "test_kv_groups.py",
            "test_message_budget.py",
            "test_message_sizes.py",
            "test_pending_writes.py",
            "test_pooling.py",
            "test_prefill_throttle.py",
            "test_prefix_cache.py",
            "test_random_walk.py",
            "test_remote_loads.py",
            "test_scheduler.py",
            "test_scheduler_adapters.py",
            "test_stage_filling.py",
            "test_state_groups.py",
            "test_step_times.py",
            "test_stopping.py",
            "test_structured_output_scheduling.py",
        ),
    ),
    Group(
        "drafts",
        ("scheduler/drafts/*.py", "scheduler/drafting.py"),
        (
            "test_drafting.py",
            "test_lookup_drafts.py",
            "test_model_drafts.py",
            "test_past_outputs.py",
            "test_random_walk.py",
            "test_service_drafts.py",
        ),
    ),
    Group(
        "kv_cache",
        ("kv_cache/*.py",),
        (
            "test_block_pool.py",
            "test_connector_chain.py",
            "test_host_tier.py",
            "test_kv_events.py",
            "test_kv_groups.py",
            "test_message_sizes.py",
            "test_pending_writes.py",
            "test_prefix_cache.py",
            "test_prefix_hash.py",
            "test_random_walk.py",
            "test_remote_loads.py",
            "test_scheduler.py",
            "test_state_groups.py",
        ),
    ),
    Group(
        "sessions",
        (
            "sessions/*.py",
            "engine/recovery.py",
            "engine/submission_wire.py",
            "api/wire.py",
            "worker/in_flight.py",
            "worker/wire.py",
        ),
        (
            "test_client_faults.py",
            "test_in_flight.py",
            "test_outbox.py",
            "test_output_sizes.py",
            "test_pooling_requests.py",
            "test_recovery.py",
            "test_sampling_wire.py",
            "test_service.py",
            "test_sessions.py",
            "test_wire.py",
            "test_wire_messages.py",
            "test_worker_group.py",
            "test_worker_link.py",
        ),
    ),
)
