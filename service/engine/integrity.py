"""The digests of a bundle's weights, checked while they are loaded: reading a large file takes as long as the rest."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from attendant.export.bundle import Bundle, check_weights
from attendant.service.engine.batch.runtime import choose_precision, choose_provider
from attendant.service.engine.resources import EngineSettings


@contextmanager
def checking_weights(bundle: Bundle, settings: EngineSettings) -> Iterator[None]:
    """Loads in the block, and checks meanwhile, in a thread, the variant that is loaded, unless that was done before.

    Leaving the block waits for the check. A BundleError of the check is raised also if the block failed, as it may on
    weights that were changed.
    """
    if bundle.weights_checked:
        yield
        return
    provider = choose_provider(settings.provider)
    precision = choose_precision(bundle, settings.precision, provider)
    variants = [precision] if provider == "cpu" else [*bundle.variants]  # CUDA may fall back to another
    with ThreadPoolExecutor(1, "attendant-digests") as pool:
        checks = [pool.submit(check_weights, bundle, variant) for variant in variants]
        try:
            yield
        finally:
            for check in checks:
                check.result()
