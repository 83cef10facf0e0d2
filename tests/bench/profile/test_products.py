"""The table of bench.profile.products."""

from __future__ import annotations

from bench.profile.products import table


def test_a_size_is_a_line_with_its_share_of_one_core_s_peak() -> None:
    limits = [
        {
            "path": "avx2",
            "threads": threads,
            "peak_gops": 200.0 * threads,
            "f32_peak_gops": 50.0 * threads,
            "bandwidth_gbs": 20.0,
        }
        for threads in (1, 2)
    ]
    size = {"path": "avx2", "k": 256, "n": 512}
    products = [{**size, "rows": 1, "us": 2.0, "gops": 100.0}, {**size, "rows": 4, "us": 5.25, "gops": 190.0}]
    first, second, head, _, line = table([*limits, *products]).splitlines()
    assert first == "avx2, 1 threads: 200 GOP/s, f32 50 GOP/s, 20.0 GB/s"
    assert second.startswith("avx2, 2 threads: 400 GOP/s")
    assert head == "| k x n | 1 rows | 4 rows |"
    assert line == "| 256 x 512 | 2.0 us, 100 (50%) | 5.2 us, 190 (95%) |"
