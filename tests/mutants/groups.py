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
            "engine/test_crash_isolation.py",
            "scheduler/test_constrained_drafts.py",
            "scheduler/test_drafting.py",
            "scheduler/test_fan_out_throttle.py",
            "scheduler/test_fan_outs.py",
            "scheduler/test_fan_out_steps.py",
            "kv_cache/test_kv_groups.py",
            "scheduler/test_message_budget.py",
            "core/test_message_sizes.py",
            "scheduler/test_model_drafts.py",
            "kv_cache/test_pending_writes.py",
            "scheduler/test_pooling.py",
            "scheduler/test_prefill_throttle.py",
            "kv_cache/test_prefix_cache.py",
            "scheduler/test_purposes.py",
            "scheduler/test_random_walk.py",
            "scheduler/test_request_queue.py",
            "kv_cache/test_remote_loads.py",
            "scheduler/test_scheduler.py",
            "scheduler/test_step_budget.py",
            "scheduler/test_adapter_places.py",
            "scheduler/test_adapter_registry.py",
            "scheduler/test_adapters.py",
            "scheduler/test_parked_requests.py",
            "scheduler/test_row_times.py",
            "scheduler/test_stage_filling.py",
            "scheduler/test_stats.py",
            "kv_cache/test_state_groups.py",
            "structured_output/test_scheduling.py",
            "media/test_media_planning.py",
        ),
    ),
    Group(
        "drafts",
        ("scheduler/drafts/*.py", "scheduler/drafting.py"),
        (
            "scheduler/test_constrained_drafts.py",
            "scheduler/test_drafting.py",
            "scheduler/test_lookup_drafts.py",
            "scheduler/test_model_drafts.py",
            "scheduler/test_past_outputs.py",
            "scheduler/test_proposers.py",
            "scheduler/test_random_walk.py",
            "scheduler/test_rate_comparison.py",
            "test_service_drafts.py",
        ),
    ),
    Group(
        "kv_cache",
        ("kv_cache/*.py",),
        (
            "kv_cache/test_block_pool.py",
            "kv_cache/test_connector_chain.py",
            "kv_cache/test_encoders.py",
            "kv_cache/test_host_tier.py",
            "kv_cache/test_kv_events.py",
            "kv_cache/test_kv_groups.py",
            "core/test_message_sizes.py",
            "kv_cache/test_pending_writes.py",
            "kv_cache/test_prefix_cache.py",
            "kv_cache/test_prefix_hash.py",
            "scheduler/test_random_walk.py",
            "kv_cache/test_remote_loads.py",
            "scheduler/test_scheduler.py",
            "kv_cache/test_state_groups.py",
        ),
    ),
    Group(
        "media",
        ("media/*.py", "core/media.py", "core/media_wire.py", "engine/media_check.py"),
        (
            "media/test_encoder_cache.py",
            "media/test_media_planning.py",
            "media/test_media_store.py",
            "engine/test_media_check.py",
            "core/test_media_wire.py",
            "worker/test_group_media.py",
            "media/test_media_walk.py",
            "media/test_whole_media.py",
            "scheduler/test_stats.py",
            "test_service_media.py",
        ),
    ),
    Group("results", ("worker/result_check.py",), ("worker/test_in_flight.py", "worker/test_result_check.py")),
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
            "sessions/test_client_faults.py",
            "worker/test_encodings.py",
            "worker/test_in_flight.py",
            "sessions/test_outbox.py",
            "sessions/test_output_sizes.py",
            "scheduler/test_pooling_requests.py",
            "engine/test_recovery.py",
            "engine/test_sampling_wire.py",
            "test_service.py",
            "test_service_media.py",
            "test_service_parameters.py",
            "sessions/test_sessions.py",
            "worker/test_wire.py",
            "engine/test_submissions.py",
            "worker/test_plan_messages.py",
            "api/test_output_messages.py",
            "worker/test_group.py",
            "worker/test_link.py",
        ),
    ),
)
