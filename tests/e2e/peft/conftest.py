"""PEFT itself as the reference of adapters: `make lora-test`, which installs it beside the product's packages."""

import os

# Without PEFT there is nothing to compare with.
collect_ignore_glob = [] if os.environ.get("TEST_PEFT") else ["test_*.py"]
