"""Groups: which files of the engine core get bugs planted, and which test modules are to find them.

All of these tests are plain ones: a service takes too long to start for each bug.
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
        "scheduling",
        ("scheduler/*.py", "kv_cache/*.py", "sessions/outbox.py", "worker/in_flight.py"),
        (
            "test_block_pool.py",
            "test_in_flight.py",
            "test_kv_events.py",
            "test_outbox.py",
            "test_prefill_throttle.py",
            "test_prefix_cache.py",
            "test_random_walk.py",
            "test_scheduler.py",
            "test_second_tier.py",
            "test_step_times.py",
            "test_stopping.py",
            "test_structured_output_scheduling.py",
            "test_pending_writes.py",
        ),
    ),
    Group(
        "sessions",
        ("sessions/sessions.py", "engine/recovery.py", "engine/submission_wire.py", "api/wire.py", "worker/wire.py"),
        ("test_recovery.py", "test_sessions.py", "test_wire.py", "test_wire_messages.py"),
    ),
)
