"""`attendant info`: what a bundle contains, and how this machine would run it."""

from __future__ import annotations

import dataclasses
import json
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnxruntime

from attendant import kernels
from attendant.common import hardware
from attendant.export.bundle import Bundle, Variant, read_bundle
from attendant.hub.names import is_name
from attendant.service.commands.named import cached_bundle
from attendant.service.engine.batch.runtime import preferred_precision, why_no_kernels
from attendant.service.engine.resources import choose_lanes, rows_that_fit
from attendant.service.errors import StartError
from attendant.service.settings import DEFAULT_BUNDLE

NAMES = {"CPUExecutionProvider": "cpu", "CUDAExecutionProvider": "cuda"}

Json = dict[str, Any]


def info(parser: ArgumentParser, arguments: list[str]) -> None:
    parser.add_argument(
        "bundle",
        nargs="?",
        type=Path,
        metavar="BUNDLE",
        help="a bundle's directory, or a model's name in the cache (default: the embedded model)",
    )
    parser.add_argument("--json", action="store_true", help="as one JSON object, sizes in bytes")
    options = parser.parse_args(arguments)
    bundle = read_bundle(find_bundle(options.bundle))
    machine = describe_machine(list(bundle.variants))
    machine |= describe_kernels(bundle, machine) | describe_lanes(bundle, machine)
    found = {"bundle": describe_bundle(bundle), "machine": machine}
    print(json.dumps(found, indent=2, ensure_ascii=False) if options.json else text_of(found))


def find_bundle(directory: Path | None) -> Path:
    """The directory that was named, or that of a model in the cache, else the embedded model's."""
    if directory is None and not DEFAULT_BUNDLE.is_dir():
        raise StartError("there is no embedded model in this installation; name a bundle.")
    if directory is not None and not directory.exists() and is_name(directory.as_posix()):
        return cached_bundle(directory.as_posix())
    return directory or DEFAULT_BUNDLE


def describe_bundle(bundle: Bundle) -> Json:
    certificate = bundle.certificate
    return {
        "name": bundle.name,
        "directory": str(bundle.directory),
        "bytes": _bytes_in(bundle.directory),
        "sizes": dataclasses.asdict(bundle.sizes),
        "limits": bundle.limits,
        "special_ids": bundle.special_ids,
        "variants": {
            name: {
                "bytes": _bytes_of(variant),
                "tolerance": variant.tolerance,
                "graphs": sorted(variant.graphs),
                "measured": variant.measured,
            }
            for name, variant in bundle.variants.items()
        },
        "certificate": {
            "samples": len(certificate.get("samples", [])),
            "torch": certificate.get("torch"),
            "beam_size": certificate.get("beam_size"),
        },
        "produced_by": bundle.produced_by,
    }


def describe_machine(
    precisions: Sequence[str], providers: Sequence[str] | None = None, root: Path = hardware.ROOT
) -> Json:
    """What the service would choose here by default; whether a CUDA device works is not checked."""
    if providers is None:
        providers = onnxruntime.get_available_providers()
    provider = "cuda" if "CUDAExecutionProvider" in providers else "cpu"
    return {
        "processor": hardware.cpu_name(root),
        "cpus": hardware.available_cpus(root),
        "cpu_quota": hardware.cpu_quota(root),
        "memory_limit": hardware.memory_limit(root),
        "onnxruntime": onnxruntime.__version__,
        "providers": [NAMES[name] for name in providers if name in NAMES],
        "provider": provider,
        "precision": preferred_precision(precisions, provider),
        "threads": hardware.available_cpus(root),
    }


def describe_lanes(bundle: Bundle, machine: Json) -> Json:
    """Lanes that the service would choose here, and why memory allows no more; 0 where it allows none."""
    precision = machine["precision"]
    if machine["provider"] != "cpu":
        return {"lanes": 1, "lanes_reason": None}
    compiled = describe_kernels(bundle, machine)["kernels"] is not None
    try:
        rows = rows_that_fit(bundle, "int8" if precision == "int8" and compiled else "float32")
    except StartError as error:
        return {"lanes": 0, "lanes_reason": str(error).removesuffix(".")}
    weights = _bytes_of(bundle.variants[precision])
    lanes, reason = choose_lanes(machine["threads"], weights, rows, machine["memory_limit"], compiled)
    return {"lanes": lanes, "lanes_reason": reason}


def describe_kernels(bundle: Bundle, machine: Json) -> Json:
    """The instruction set that the compiled kernels would use, or why they would not be used."""
    reason = why_no_kernels(machine["provider"], bundle.variants[machine["precision"]].graphs)
    return {"kernels": None if reason else kernels.path_name(), "kernels_reason": reason}


def text_of(found: Json) -> str:
    """The same as text for people."""
    return "\n".join([*_bundle_lines(found["bundle"]), "", *_machine_lines(found["machine"])])


def _bundle_lines(bundle: Json) -> list[str]:
    sizes, limits, certificate = bundle["sizes"], bundle["limits"], bundle["certificate"]
    model = (
        f"{sizes['encoder_layers']} + {sizes['decoder_layers']} layers, d_model {sizes['d_model']}, "
        f"d_ff {sizes['d_ff']}, {sizes['heads']} heads"
    )
    lines = [
        f"{bundle['name']}: {bundle['directory']}, {_size(bundle['bytes'])}",
        _row("model", model),
        _row("vocabulary", f"{sizes['source_vocab']:,} source and {sizes['target_vocab']:,} target tokens"),
        _row(
            "limits",
            f"{limits['max_source_length']:,} source tokens, {limits['max_target_length']:,} target tokens "
            "with the end token",
        ),
    ]
    for name, variant in bundle["variants"].items():
        tolerance = f"log-probabilities within {variant['tolerance']:g} of torch's"
        lines.append(_row(name, f"{_size(variant['bytes'])}, {tolerance}"))
        lines += [_row("", line) for line in _measured_lines(variant["measured"])]
    by = f" of torch {certificate['torch']}" if certificate["torch"] else ""
    lines.append(_row("certificate", f"{certificate['samples']} samples{by}"))
    lines.append(
        _row("produced by", ", ".join(f"{name} {value[:16]}" for name, value in bundle["produced_by"].items()))
    )
    return lines


def _measured_lines(measured: Json) -> list[str]:
    """What export measured of a variant against torch; no lines if the bundle has no such figures."""
    names = ("drift", "differing_greedy", "held_out_inputs", "sequence_error_rate", "torch_sequence_error_rate")
    if not all(name in measured for name in names):
        return []
    drift, differing, inputs, rate, torch_rate = (measured[name] for name in names)
    return [
        f"measured: drift {drift:g}; {differing:g} % of {inputs:,} greedy answers differ from torch's",
        f"sequence error rate {rate:g} %, torch's {torch_rate:g} %",
    ]


def _machine_lines(machine: Json) -> list[str]:
    quota = machine["cpu_quota"]
    held = f", of a quota of {quota:g}" if quota is not None else ""
    name = f" ({machine['processor']})" if machine["processor"] else ""
    threads = "1 thread" if machine["threads"] == 1 else f"{machine['threads']} threads"
    lanes = "1 lane" if machine["lanes"] == 1 else f"{machine['lanes']} lanes"
    reason = [_row("", f"{lanes}, since {machine['lanes_reason']}")] if machine["lanes_reason"] else []
    cuda = ", if its device answers; else on cpu" if machine["provider"] == "cuda" else ""
    return [
        "this machine",
        _row("processors", f"{machine['cpus']}{held}{name}"),
        _row("memory", f"{_size(machine['memory_limit'])} may be used"),
        _row("onnxruntime", f"{machine['onnxruntime']}, with {' and '.join(machine['providers']) or 'nothing known'}"),
        _row("would run", f"{machine['precision']} on {machine['provider']}{cuda}, {threads}, {lanes}"),
        *reason,
        _row("kernels", machine["kernels"] or f"none, so the portable graphs are used. {machine['kernels_reason']}"),
    ]


def _row(name: str, value: str) -> str:
    return f"  {name:<14}{value}"


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def _bytes_of(variant: Variant) -> int:
    """Size on disk of a variant: its graphs, and the weights stored beside them."""
    return sum(_bytes_in(directory) for directory in {path.parent for path in variant.graphs.values()})


def _bytes_in(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
