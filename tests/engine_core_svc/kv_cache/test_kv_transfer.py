"""Which models can take part in transfers of KV blocks."""

import pytest

from tetrad.engine_core_svc.core.kv_groups import ONE_GROUP, KvGroup
from tetrad.engine_core_svc.kv_cache.kv_transfer import check_model
from tetrad.services.errors import Unsupported


def test_a_model_that_keeps_all_tokens_can():
    check_model(ONE_GROUP, generates=True)


@pytest.mark.parametrize("groups", [(), (KvGroup(sliding_window=8),), (*ONE_GROUP, KvGroup(sliding_window=8))], ids=len)
def test_a_model_whose_blocks_are_freed_or_overwritten_cannot(groups):
    with pytest.raises(Unsupported, match=f"this one has {len(groups)} KV groups"):
        check_model(groups, generates=True)


def test_a_model_that_pools_cannot():
    with pytest.raises(Unsupported, match="kv-role needs a model that generates tokens; this one pools"):
        check_model(ONE_GROUP, generates=False)
