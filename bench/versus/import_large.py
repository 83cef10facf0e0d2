"""Models as large as people download: imported, exported, served, and raced against CTranslate2.

    python -m bench.versus.import_large [--parts m2m] [--seconds 30]

BART-large, NLLB-600M and T5-large with random weights, as directories of Hugging Face's library
(`bench.models.directories`). `attendant import`, `attendant export` with its proof, and CTranslate2's converter of the
same directory are each a process, of which seconds and the peak of memory are taken. 8 bits cannot hold random weights,
so the proof may leave int8 out, and f32 may round them by more than the proof admits; then what is served and raced is
written without the proof. `attendant serve` in int8 is started until it is ready, and our int8 takes turns with
CTranslate2's four ways on `bench.versus.large`'s works, after both gave the same tokens in f32. The paper's base model
(`bench.models.random_model --ending`) is exported alone.

A shape takes some 20 GB on disk, 16 GB of memory and half an hour, with `--no-proof` some minutes; its row is written
when it is done, and its files are removed. `--parts` takes some of them; rows of others stay. `--small`: the same in a
minute, with tiny models.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.http.start import measure as measure_start
from bench.models.directories import FAMILIES, LANGUAGES, Family, small
from bench.models.random_model import BASE, CACHE, Shape, prepare
from bench.report.record import RESULTS_HERE, warn_of_few_cores, write_record
from bench.versus.child import Measured, measured
from bench.versus.engines import SOURCE_LENGTH, TARGET_LENGTH
from bench.versus.large import CHECKED, race_int8, works
from bench.versus.race import UnequalError

ROOT = Path(__file__).parents[2]
LANGUAGE_FLAGS = {"m2m": ("--source-language", LANGUAGES[0], "--target-language", LANGUAGES[1])}
MAKER = "bench.models.directories"
EXPORTED = "base"  # the part, and its name
PARTS = (EXPORTED, *FAMILIES)


def take_base(directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The row of the base model, which is exported alone."""
    small_shape = Shape(vocabulary=400, d_model=32, d_ff=64, heads=4, layers=1)
    run = prepare(small_shape if options.small else replace(BASE, ending=True)).run
    row = begun(EXPORTED, run)
    directory.mkdir(parents=True)
    return {**row, "export": export(run, directory / "proven")}


def begun(name: str, run: Path) -> dict[str, Any]:
    return {
        "name": name,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "load": round(os.getloadavg()[0], 1),
        "weights_mb": megabytes(size_of(run / "model.safetensors")),
    }


def take(family: Family, directory: Path, options: argparse.Namespace) -> dict[str, Any]:
    """A shape's row; its files are in `directory`."""
    kind, flag = family.format, ["--small"] if options.small else []
    source, run, proven = directory / kind, directory / "run", directory / "proven"
    measured(["-m", MAKER, "write", kind, str(source), *flag], ROOT)
    given = ["--samples", str(source / "samples.tsv"), *LANGUAGE_FLAGS.get(kind, ())]
    imported = measured(["-m", "attendant", "import", kind, str(source), "--out", str(run), *given], ROOT)
    row = {**begun(family.name, run), "import": figures(imported)}
    print(row, flush=True)
    if options.proof:
        row["export"] = export(run, proven)
        print(row["export"], flush=True)
    bundle = served_bundle(run, proven, directory / "bundle")
    models = {precision: directory / f"ctranslate2-{precision}" for precision in ("fp32", "int8")}
    shutil.rmtree(proven, ignore_errors=True) if bundle != proven else None
    for precision, path in models.items():
        found = measured(["-m", MAKER, "convert", kind, str(source), str(path), "--precision", precision, *flag], ROOT)
        row[f"ctranslate2_{precision}"] = {**figures(found), "mb": megabytes(size_of(path))}
    row["bundle_mb"] = {name: megabytes(size_of(bundle / name)) for name in ("fp32", "int8")}
    started = measure_start(family.name, bundle, options.starts)
    row["serve"] = {name: started[name] for name in ("ready_seconds", "resident_mb", "peak_mb")}
    print(row, flush=True)
    row["works"] = race_int8(bundle, models, family.vocabulary, works(TARGET_LENGTH), options.threads, options.seconds)
    return row


def export(run: Path, out: Path) -> dict[str, Any]:
    """`attendant export` with its proof, what it promised to hold, and the variants that it wrote."""
    from attendant.export.graphs.graphs import sizes_of
    from attendant.export.make.memory import needed
    from attendant.model import checkpoint

    found = measured(["-m", "attendant", "export", str(run), "--out", str(out)], ROOT, may_refuse=True)
    promised = needed(sizes_of(checkpoint.read_model_config(run)))
    variants = [] if found.code else json.loads((out / "manifest.json").read_text(encoding="utf-8"))["variants"]
    return {**figures(found), "promised_mb": megabytes(promised), "variants": sorted(variants)}


def served_bundle(run: Path, proven: Path, out: Path) -> Path:
    """The proven bundle, or if int8 is not in it or there is none, one that was written without the proof."""
    if (proven / "int8").is_dir():
        return proven
    measured(["-m", MAKER, "bundle", str(run), str(out)], ROOT)
    return out


def figures(found: Measured) -> dict[str, float]:
    return {
        "seconds": round(found.seconds, 1),
        "processor_seconds": round(found.processor_seconds, 1),
        "peak_mb": megabytes(found.peak),
    }


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files of a directory."""
    return sum(each.stat().st_size for each in ([path] if path.is_file() else path.rglob("*")) if each.is_file())


def megabytes(count: int) -> float:
    return round(count / 1e6, 1) if count < 10**7 else round(count / 1e6)


def rows_before(path: Path, name: str) -> list[dict[str, Any]]:
    """The rows of other shapes that a record holds."""
    held = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.is_file() else []
    return [row for row in held if row["name"] != name]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="BART-large, NLLB-600M and T5-large: import, export, serve, race.")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="rows of others stay in the record")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long turns are taken; three of each at least")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--starts", type=int, default=2, help="of the server")
    parser.add_argument(
        "--no-proof", action="store_false", dest="proof", help="leave out attendant export, and serve without its proof"
    )
    parser.add_argument("--small", action="store_true", help="tiny models, to see that it works")
    parser.add_argument("--directory", type=Path, default=CACHE / "import", help="where files are while it runs")
    parser.add_argument("--out", type=Path, default=RESULTS_HERE / "import_large.json")
    return parser.parse_args()


def main() -> None:
    options = parse()
    warn_of_few_cores(options.threads)
    for part in options.parts:
        directory = options.directory / part
        shutil.rmtree(directory, ignore_errors=True)
        try:
            row = (
                take_base(directory, options)
                if part == EXPORTED
                else take(family_of(part, options), directory, options)
            )
        except UnequalError as error:
            raise SystemExit(str(error)) from None
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        rows = [*rows_before(options.out, row["name"]), row]
        sizes = {"source_length": SOURCE_LENGTH, "target_length": TARGET_LENGTH, "checked": CHECKED}
        write_record(options.out, "bench.versus.import_large", rows, **sizes, threads=options.threads)
        print(json.dumps(row), flush=True)


def family_of(part: str, options: argparse.Namespace) -> Family:
    return small(FAMILIES[part]) if options.small else FAMILIES[part]


if __name__ == "__main__":
    main()
