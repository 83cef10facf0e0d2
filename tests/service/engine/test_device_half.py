"""The device path in f16, with the CPU as the device: what an engine takes, streams, refuses and how it ends.

Not here: names of precisions, and what is compared to the last bit; f16 has bounds in test_engine_device.py.
"""

from __future__ import annotations

import pytest

from attendant.export.bundle import Bundle
from attendant.model.transformer import Transformer
from attendant.service.engine.engine import Engine
from tests.service.engine import test_engine as test_engine_engine
from tests.service.engine import test_lifecycle as test_engine_lifecycle
from tests.support import engines
from tests.support.engines import make_engine
from tests.support.small_models import make_model

EXACT = (
    "oracle",
    "softmax",
    "scored_again",
    "to_the_bit",
    "changes_nothing",
    "without_fast_graphs",
    "start_tokens",
    "precision",
)

engine_tests = vars(test_engine_engine) | vars(test_engine_lifecycle)
globals().update(
    {
        name: test
        for name, test in engine_tests.items()
        if name.startswith("test_") and not any(word in name for word in EXACT)
    }
)


@pytest.fixture(scope="module")
def model() -> Transformer:
    return make_model(seed=3)


@pytest.fixture(scope="module")
def bundle(model: Transformer, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """One variant, in f16, under the name that the tests ask for."""
    bundle = engines.make_bundle(model, tmp_path_factory.mktemp("bundle") / "half", ("fp16",))
    bundle.variants["fp32"] = bundle.variants.pop("fp16")
    return bundle


@pytest.fixture(scope="module")
def engine(bundle: Bundle) -> Engine:
    return make_engine(bundle)


def test_the_caches_are_in_half_precision(engine: Engine) -> None:
    assert engine._resources.all_threads.cache_dtype == "float16"
