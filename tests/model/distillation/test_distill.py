"""Distillation: what teachers say of a corpus, and a student that learns from it."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import attendant
from attendant.model import checkpoint
from attendant.model.config import build
from attendant.model.corpus.data import EncodedCorpus, collate, epoch_batches
from attendant.model.corpus.pairs import read_pairs
from attendant.model.distillation.distill import DistillPlan, distill
from attendant.model.distillation.labelling import (
    continuations,
    geometric_mean,
    label,
    log_probabilities,
    read_hypotheses,
)
from attendant.model.distillation.teachers import PAIRS, PROBABILITIES, TOKENS, TeacherDistributions
from attendant.model.errors import ConfigError, UserError
from attendant.model.search.reference import greedy
from attendant.model.text.tokenizer import EOS, load
from attendant.model.training import recipe
from attendant.model.training.prepare import Plan
from attendant.model.training.train import train

ROOT = Path(__file__).parents[3]
WORDS = [f"{a}{b}{c}" for a in "abcde" for b in "fghij" for c in "klmnopqr"]
LINES = [f"{word}\t{' '.join(word[::-1].upper())}" for word in WORDS]  # 200 lines
QUICK = {"steps": 20, "validate_every": 20, "warmup": 5, "batch_tokens": 512, "max_length": 16, "precision": "fp32"}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """runs/data with 150, 25 and 25 lines and words of which some are in each, and two teachers beside it."""
    runs = tmp_path_factory.mktemp("here") / "runs"
    data = runs / "data"
    data.mkdir(parents=True)
    for name, lines in (("train", LINES[:150]), ("valid", LINES[150:175]), ("test", LINES[175:])):
        (data / f"{name}.tsv").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    new = ["afafk", "kafa", "r", "jjj"]
    words = [*new, WORDS[0], WORDS[160], WORDS[199], "#known to no one#", "a" * 20, ""]
    (data / "words.txt").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
    for seed in (1, 2):
        teach(data, runs / f"teacher{seed}", seed=seed)
    return runs


def teach(data: Path, out: Path, **changes: Any) -> None:
    model, training = build("tiny", {**QUICK, **changes})
    train(
        Plan(
            data=data / "train.tsv",
            valid=data / "valid.tsv",
            out=out,
            model=model,
            train=training,
            target_tokenizer="words",
        )
    )


def plan_for(runs: Path, out: Path, **changes: Any) -> DistillPlan:
    data = runs / "data"
    values: dict[str, Any] = {
        "teachers": [runs / "teacher1", runs / "teacher2"],
        "data": data / "train.tsv",
        "out": out,
        "words": [data / "words.txt"],
        "held_out": [data / "valid.tsv", data / "test.tsv"],
    }
    return DistillPlan(**(values | changes))


def test_the_pairs_are_the_true_ones_and_labelled_words_that_are_in_no_part(corpus: Path, tmp_path: Path) -> None:
    counts = distill(plan_for(corpus, tmp_path / "distilled"))["counts"]
    pairs = list(read_pairs(tmp_path / "distilled" / PAIRS))
    assert pairs[:150] == list(read_pairs(corpus / "data" / "train.tsv"))
    sources = [source for source, _ in pairs]
    assert sources[150:]
    assert set(sources[150:]) <= {"afafk", "kafa", "r", "jjj"}
    assert not {WORDS[160], WORDS[199]} & set(sources)
    assert counts["words"] == 9
    assert (counts["words_with_targets"], counts["words_held_out"], counts["words_unreadable"]) == (1, 2, 2)


def test_a_held_out_word_is_known_again_as_the_teachers_read_it(corpus: Path, tmp_path: Path) -> None:
    command = ["train", "--preset=tiny", "--normalize=lower,strip", "--target-tokenizer=words", "--set=steps=2"]
    files = ["--data", str(corpus / "data" / "train.tsv"), "--valid", str(corpus / "data" / "valid.tsv")]
    assert attendant.main([*command, *files, "--out", str(tmp_path / "teacher")]) == 0
    (tmp_path / "held.tsv").write_text("".join(f"{line.upper()}\n" for line in LINES[150:]), encoding="utf-8")
    (tmp_path / "words.txt").write_text(f"{WORDS[160]}\nAFAFK\nafafk\n {WORDS[0].upper()}\n", encoding="utf-8")
    changes = {
        "teachers": [tmp_path / "teacher"],
        "words": [tmp_path / "words.txt"],
        "held_out": [tmp_path / "held.tsv"],
    }
    counts = distill(plan_for(corpus, tmp_path / "distilled", **changes))["counts"]
    assert counts["words"] == 3  # afafk is there twice
    assert (counts["words_with_targets"], counts["words_held_out"]) == (1, 1)


def test_files_that_are_none_are_said_before_any_work(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nosuch is not there"):
        distill(plan_for(corpus, tmp_path / "distilled", data=tmp_path / "nosuch"))
    (tmp_path / "counted.txt").write_text("afafk\t17\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"counted\.txt, line 1, has a tab"):
        distill(plan_for(corpus, tmp_path / "distilled", words=[tmp_path / "counted.txt"]))


def test_words_are_not_labelled_without_knowing_what_is_held_out(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--words needs --held-out"):
        distill(plan_for(corpus, tmp_path / "distilled", held_out=[]))


def test_the_distributions_are_the_mean_of_the_teachers_best_eight(corpus: Path, tmp_path: Path) -> None:
    distill(plan_for(corpus, tmp_path / "distilled", words=[]))
    teachers = [checkpoint.load_trained(corpus / name) for name in ("teacher1", "teacher2")]
    written = TeacherDistributions.open(tmp_path / "distilled")
    numbers = np.array([0, 77, 149])
    tokens, probabilities = written.read(numbers)
    pairs = list(read_pairs(tmp_path / "distilled" / PAIRS))
    for row, number in enumerate(numbers):
        source, target = (
            t.encode(x) for t, x in zip((teachers[0].source, teachers[0].target), pairs[number], strict=True)
        )
        batch = collate([source], [target])
        with torch.inference_mode():
            mean = sum(t.model(batch.source, batch.target[:, :-1]).softmax(-1)[0] for t in teachers) / 2
        best = mean.topk(8)
        assert torch.equal(tokens[row], best.indices)
        assert_close(probabilities[row], best.values / best.values.sum(-1, keepdim=True), atol=1e-3, rtol=0)


def test_a_label_is_the_answer_that_the_teachers_together_find_most_probable(corpus: Path) -> None:
    teachers = [checkpoint.load_trained(corpus / name) for name in ("teacher1", "teacher2")]
    models, words = [t.model for t in teachers], ["afafk", "kafa", "ebr", "cij"]
    labels = label(models, words, teachers[0])
    assert labels
    for each in labels:
        word = each.source
        answers = [t.target.decode(greedy(t.model, t.source.encode(word)).ids) for t in teachers]
        answers = [answer for answer in answers if len(answer.split()) < 16]  # one that never ends is none
        scores = log_probabilities(models, [(word, answer) for answer in answers], teachers[0])
        assert each.target == answers[int(np.argmax(scores))]
        assert each.probability == pytest.approx(np.exp(max(scores)), rel=1e-5)


def test_labels_that_the_teachers_are_unsure_of_are_left_out(corpus: Path, tmp_path: Path) -> None:
    assert distill(plan_for(corpus, tmp_path / "sure", min_probability=0.9999))["counts"]["labelled"] == 0
    assert distill(plan_for(corpus, tmp_path / "all"))["counts"]["labelled"] > 0


def test_a_log_probability_is_that_of_each_token_added_up(corpus: Path) -> None:
    trained = checkpoint.load_trained(corpus / "teacher1")
    pairs = [("afk", "K F A"), ("e", "E E E E E")]
    for (word, text), found in zip(pairs, log_probabilities([trained.model], pairs, trained), strict=True):
        batch = collate([trained.source.encode(word)], [trained.target.encode(text)])
        logprobs = trained.model(batch.source, batch.target[:, :-1]).log_softmax(-1)[0]
        wanted = [*trained.target.encode(text), EOS]
        assert found == pytest.approx(sum(logprobs[i, token].item() for i, token in enumerate(wanted)), abs=1e-4)


def test_a_batch_has_the_distributions_of_its_own_pairs(corpus: Path, tmp_path: Path) -> None:
    """The first token of a distribution of teachers that are sure is the target itself."""
    trained = checkpoint.load_trained(corpus / "teacher1")
    tsv = corpus / "data" / "train.tsv"
    encoded, _ = EncodedCorpus.write(tsv, tmp_path / "corpus", trained.source, trained.target, 16)
    _, index = encoded.read(0, encoded.pairs)
    teachers = TeacherDistributions.create(tmp_path, index["target"], trained.target.size)
    for number, (_, target) in enumerate(read_pairs(tsv)):
        ids = torch.tensor([*trained.target.encode(target), EOS])
        teachers.write(np.array([number]), torch.nn.functional.one_hot(ids, trained.target.size)[None].float())
    for batch in epoch_batches(encoded, 256, 1, 0, one_target=True, teachers=teachers):
        assert torch.equal(batch.teacher_tokens[..., 0], batch.target[:, 1:])
        assert torch.equal(batch.teacher_probabilities[..., 0], (batch.target[:, 1:] != 0).float())


def test_teachers_with_other_tokenizers_are_refused(
    corpus: Path, tmp_path: Path, write_tsv: Callable[..., Path]
) -> None:
    write_tsv(*LINES[:20], "zz\tZ Z", name="train.tsv")
    write_tsv(*LINES[:20], name="valid.tsv")
    teach(tmp_path, tmp_path / "other", steps=1, validate_every=1)
    with pytest.raises(UserError, match="other has other tokenizers than"):
        distill(plan_for(corpus, tmp_path / "distilled", teachers=[corpus / "teacher1", tmp_path / "other"]))


def test_what_is_distilled_already_is_kept_and_never_mixed(corpus: Path, tmp_path: Path) -> None:
    first = distill(plan_for(corpus, tmp_path / "distilled"))
    assert distill(plan_for(corpus, tmp_path / "distilled")) == first
    with pytest.raises(UserError, match="was distilled from other teachers or files"):
        distill(plan_for(corpus, tmp_path / "distilled", teachers=[corpus / "teacher1"]))


def test_a_student_resumes_bit_for_bit_and_keeps_to_its_distillation(corpus: Path, tmp_path: Path) -> None:
    distill(plan_for(corpus, tmp_path / "distilled"))
    distill(plan_for(corpus, tmp_path / "other", words=[]))

    def study(out: str, resume: bool = False, distilled: str = "distilled", **changes: Any) -> Path:
        model, training = build("tiny", {**QUICK, "schedule": "paper", "dropout": 0.1, "ema": 0.9, **changes})
        directory = tmp_path / distilled
        train(
            Plan(
                data=directory / PAIRS,
                valid=corpus / "data" / "valid.tsv",
                out=tmp_path / out,
                model=model,
                train=training,
                distilled=directory,
                resume=resume,
            )
        )
        return tmp_path / out

    whole = study("whole", steps=8, validate_every=4)
    study("parts", steps=4, validate_every=4)
    parts = study("parts", resume=True, steps=8, validate_every=4)
    a, b = (checkpoint.load_file(checkpoint.checkpoints(run)[-1] / checkpoint.MODEL) for run in (whole, parts))
    assert all(torch.equal(a[name], b[name]) for name in a)
    with pytest.raises(UserError, match=r"other values of .*--distilled"):
        study("parts", resume=True, distilled="other")


def test_a_student_can_normalize_where_its_teachers_did_not(corpus: Path, tmp_path: Path) -> None:
    distill(plan_for(corpus, tmp_path / "distilled", words=[]))
    data, valid = str(tmp_path / "distilled"), str(corpus / "data" / "valid.tsv")
    sets = [f"--set={name}={value}" for name, value in {**QUICK, "steps": 1, "validate_every": 1}.items()]
    arguments = ["train", "--preset=tiny", "--distilled", data, "--valid", valid, *sets, "--normalize=lower,strip"]
    assert attendant.main([*arguments, "--out", str(tmp_path / "student")]) == 0
    teacher, student = (checkpoint.load_trained(run) for run in (corpus / "teacher1", tmp_path / "student"))
    assert student.source.encode(" AFK") == teacher.source.encode("afk")
    assert "--normalize lower,strip" in recipe.commands(tmp_path / "student")[-1]


def test_teachers_who_are_certain_of_the_targets_teach_what_the_targets_do(corpus: Path, tmp_path: Path) -> None:
    distill(plan_for(corpus, tmp_path / "distilled", words=[]))
    found = {}
    for certain in (False, True):
        if certain:
            _make_certain(tmp_path / "distilled")
        for weight in (0.0, 1.0):
            model, training = build(
                "tiny",
                {**QUICK, "steps": 3, "optimizer": "sgd", "learning_rate": 0.3, "warmup": 1, "teacher_weight": weight},
            )
            out = tmp_path / f"{certain}{weight}"
            train(
                Plan(
                    data=tmp_path / "distilled" / PAIRS,
                    valid=corpus / "data" / "valid.tsv",
                    out=out,
                    model=model,
                    train=training,
                    distilled=tmp_path / "distilled",
                )
            )
            found[certain, weight] = checkpoint.load_file(checkpoint.find_weights(out))[
                "target_embedding.tokens.weight"
            ]
    assert_close(found[True, 1.0], found[True, 0.0], atol=1e-5, rtol=0)
    assert torch.equal(found[False, 0.0], found[True, 0.0])
    assert (found[False, 1.0] - found[False, 0.0]).abs().max() > 1e-3


def _make_certain(directory: Path) -> None:
    """Put the whole probability on the target, wherever the teachers had it."""
    target = load(directory / checkpoint.TARGET_TOKENIZER)
    wanted = [i for _, text in read_pairs(directory / PAIRS) for i in (*target.encode(text), EOS)]
    tokens = np.load(directory / TOKENS)
    tokens[:, 0] = wanted
    np.save(directory / TOKENS, tokens)
    np.save(directory / PROBABILITIES, np.eye(1, tokens.shape[1], dtype=np.float16).repeat(len(tokens), axis=0))


def test_the_commands_of_a_run_make_it_again(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the corpus alone: teachers, distillation, student, all read from what the student has written down."""
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))  # as many as the teachers above had
    distill(plan_for(corpus, corpus / "distilled"))
    sets = {**QUICK, "dropout": 0.1, "bias": "false", "select": "error", "select_ignore": "[A-C] ", "seed": 3}
    monkeypatch.chdir(corpus.parent)
    arguments = ["--preset", "tiny", "--distilled", "runs/distilled", "--valid", "runs/data/valid.tsv", "--out"]
    student = ["train", *arguments, "runs/student", *(f"--set={name}={value}" for name, value in sets.items())]
    assert attendant.main(student) == 0
    commands = recipe.commands(Path("runs/student"))
    assert [command.split()[1] for command in commands] == ["train", "train", "distill", "train"]

    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "data").symlink_to(corpus / "data")
    monkeypatch.chdir(tmp_path)
    for command in commands:
        assert attendant.main(shlex.split(command)[1:]) == 0
    for run in ("teacher2", "student"):
        a, b = (checkpoint.load_file(checkpoint.find_weights(root / run)) for root in (corpus, tmp_path / "runs"))
        assert all(torch.equal(a[name], b[name]) for name in a)
    assert recipe.commands(tmp_path / "runs" / "student") == commands
    assert not recipe.changed_on_the_way(tmp_path / "runs" / "student")


def test_a_student_of_the_model_that_it_begins_with_tells_each_command_once(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(corpus.parent)
    distill(plan_for(corpus, corpus / "both"))
    flags = ["--distilled", "runs/both", "--init-from", "runs/teacher2", "--valid", "runs/data/valid.tsv"]
    assert attendant.main(["train", "--preset=tiny", *flags, "--out=runs/begun", "--set=steps=2"]) == 0
    made = [command.split(" --out runs/")[1].split()[0] for command in recipe.commands(Path("runs/begun"))]
    assert made == ["teacher2", "teacher1", "both", "begun"]


def test_train_takes_pairs_from_one_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert attendant.main(["train", "--valid", "v.tsv", "--out", "run"]) == 2
    assert "one of the arguments --data --distilled is required" in capsys.readouterr().err
    both = ["train", "--distilled", "d", "--tokenizer", "chars", "--valid", "v.tsv", "--out", "run"]
    assert attendant.main(both) == 2
    assert "--distilled brings the teachers' tokenizers" in capsys.readouterr().err


@pytest.fixture
def hypotheses(corpus: Path, tmp_path: Path) -> Path:
    """Another model's answers for some of the words, which it is surer of than teachers of 20 steps can be."""
    lines = [
        "afafk\t0.1\tK F A F A",
        "afafk\t90\tK F",
        "kafa\t0.2\tA F A K",
        "kafa\t90\tA",
        "kafa\t0.1\t",
        "jjj\t0.3\tno such token",
    ]
    path = tmp_path / "hypotheses.tsv"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_another_models_hypotheses_are_candidates_and_its_probabilities_count(
    corpus: Path, tmp_path: Path, hypotheses: Path
) -> None:
    described = distill(plan_for(corpus, tmp_path / "distilled", hypotheses=hypotheses))
    labels = dict(list(read_pairs(tmp_path / "distilled" / PAIRS))[150:])
    assert (labels["afafk"], labels["kafa"]) == ("K F A F A", "A F A K")
    assert "no such token" not in labels.values()
    assert f"--hypotheses runs/data/{hypotheses.name}" in described["command"]
    assert hypotheses.name in described["sha256"]


def test_true_pairs_are_taught_alike_with_hypotheses_and_without(
    corpus: Path, tmp_path: Path, hypotheses: Path
) -> None:
    distill(plan_for(corpus, tmp_path / "with", hypotheses=hypotheses))
    distill(plan_for(corpus, tmp_path / "without"))
    one, other = (TeacherDistributions.open(tmp_path / name).read(np.arange(150)) for name in ("with", "without"))
    assert_close(one[1], other[1], atol=1e-3, rtol=0)  # batches of other pairs: the last bits differ


def test_a_labelled_word_is_taught_what_its_candidates_say_together(
    corpus: Path, tmp_path: Path, hypotheses: Path
) -> None:
    distill(plan_for(corpus, tmp_path / "distilled", hypotheses=hypotheses))
    teachers = [checkpoint.load_trained(corpus / name) for name in ("teacher1", "teacher2")]
    target = teachers[0].target
    labels = label([t.model for t in teachers], ["afafk"], teachers[0], read_hypotheses(hypotheses))
    chances = labels[0].candidates
    sources = [source for source, _ in read_pairs(tmp_path / "distilled" / PAIRS)]
    tokens, probabilities = TeacherDistributions.open(tmp_path / "distilled").read(np.array([sources.index("afafk")]))
    for position, wanted in enumerate([*target.encode(labels[0].target), EOS]):
        so_far = target.encode(labels[0].target)[:position]
        ended = {text: [*target.encode(text), EOS] for text in chances}
        agree = {text: ids for text, ids in ended.items() if ids[:position] == so_far and len(ids) > position}
        share = sum(chances[t] for t, ids in agree.items() if ids[position] == wanted) / sum(chances[t] for t in agree)
        found = dict(zip(tokens[0, position].tolist(), probabilities[0, position].tolist(), strict=True))
        assert found[wanted] == pytest.approx(share, abs=1e-3)


def test_a_candidate_has_the_geometric_mean_of_both_models_probabilities() -> None:
    found = geometric_mean({"A": np.log(0.5), "B": np.log(0.02)}, {"B": -np.log(0.5), "C": -np.log(0.02)})
    assert found == pytest.approx({"A": 0.5, "B": 0.5})  # of A the other model is as sure as of its last, C


def test_a_candidate_that_is_no_field_of_a_line_is_no_label(corpus: Path) -> None:
    trained = checkpoint.load_trained(corpus / "teacher1")
    labels = label([trained.model], ["afafk"], trained, {"afafk": {"A\tF": -50.0, "A F\n": -50.0, "K F": 5.0}})
    assert set(labels[0].candidates) & {"A\tF", "A F\n", "K F"} == {"K F"}


def test_distributions_are_written_also_where_no_space_can_be_reserved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fallocate")
    made = TeacherDistributions.create(tmp_path, np.array([2, 3]), 20)
    made.write(np.array([0]), torch.full((1, 3, 20), 0.05))
    assert made.read(np.array([0]))[1].sum(-1)[0].tolist() == pytest.approx([1.0, 1.0, 1.0], abs=1e-3)


def test_what_no_candidate_agrees_with_is_not_heard_at_later_positions() -> None:
    found = continuations([4, 5], [([4, 5], 0.6), ([4, 6], 0.3), ([7, 5, 5], 0.1)], 8)
    assert_close(found.sum(-1), torch.ones(3))
    assert found[0, 4].item() == pytest.approx(0.9)
    assert found[1, 5].item() == pytest.approx(2 / 3)
    assert found[2, EOS].item() == 1.0


@pytest.mark.parametrize("line", ["afafk\tK F A", "afafk\tdear\tK F A", "afafk\tnan\tK", "a\t1\tK\tF"])
def test_a_line_that_is_no_hypothesis_is_named(corpus: Path, tmp_path: Path, line: str) -> None:
    (tmp_path / "bad.tsv").write_text(f"kafa\t1\tA F\n{line}\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"bad\.tsv, line 2, is not source<TAB>cost<TAB>target"):
        distill(plan_for(corpus, tmp_path / "distilled", hypotheses=tmp_path / "bad.tsv"))


def test_only_a_newline_ends_a_line_of_hypotheses(tmp_path: Path) -> None:
    (tmp_path / "some.tsv").write_text("a\u2028b\t1\tA B\r\nc\t2\tC\n", encoding="utf-8", newline="")
    assert read_hypotheses(tmp_path / "some.tsv") == {"a\u2028b": {"A B": 1.0}, "c": {"C": 2.0}}


def test_a_long_line_that_is_no_hypothesis_is_shown_by_its_beginning(tmp_path: Path) -> None:
    (tmp_path / "bad.tsv").write_text("x" * 10_000, encoding="utf-8")
    with pytest.raises(UserError, match=r"line 1, is not source<TAB>cost<TAB>target") as caught:
        read_hypotheses(tmp_path / "bad.tsv")
    assert len(str(caught.value)) < 400


def test_words_and_hypotheses_are_the_same_if_the_teachers_read_them_so(corpus: Path, tmp_path: Path) -> None:
    command = ["train", "--preset=tiny", "--normalize=lower,strip", "--target-tokenizer=words", "--set=steps=2"]
    files = ["--data", str(corpus / "data" / "train.tsv"), "--valid", str(corpus / "data" / "valid.tsv")]
    assert attendant.main([*command, *files, "--out", str(tmp_path / "teacher")]) == 0
    (tmp_path / "words.txt").write_text("\ufeffKafa\nafafk\n", encoding="utf-8")
    (tmp_path / "hypotheses.tsv").write_text("\ufeffkafa \t0\tA F A K\nkafa\t90\tA\n", encoding="utf-8")
    files = {"words": [tmp_path / "words.txt"], "hypotheses": tmp_path / "hypotheses.tsv"}
    described = distill(plan_for(corpus, tmp_path / "distilled", teachers=[tmp_path / "teacher"], **files))
    assert dict(read_pairs(tmp_path / "distilled" / PAIRS))["Kafa"] == "A F A K"
    assert described["counts"]["labelled_with_hypotheses"] == 1


def test_a_word_without_hypotheses_is_labelled_and_taught_as_if_there_were_none(
    corpus: Path, tmp_path: Path, hypotheses: Path
) -> None:
    distill(plan_for(corpus, tmp_path / "with", hypotheses=hypotheses))
    distill(plan_for(corpus, tmp_path / "without"))
    found = []
    for name in ("with", "without"):
        pairs = list(read_pairs(tmp_path / name / PAIRS))
        number = next(n for n, (source, _) in enumerate(pairs) if source == "r")
        found.append((pairs[number], TeacherDistributions.open(tmp_path / name).read(np.array([number]))[1]))
    assert found[0][0] == found[1][0]
    assert_close(found[0][1], found[1][1], atol=1e-3, rtol=0)


def test_two_files_of_one_name_are_refused(corpus: Path, tmp_path: Path) -> None:
    shutil.copy(corpus / "data" / "test.tsv", tmp_path / "valid.tsv")
    with pytest.raises(ConfigError, match=r"two of the files are called valid\.tsv"):
        distill(plan_for(corpus, tmp_path / "out", held_out=[corpus / "data" / "valid.tsv", tmp_path / "valid.tsv"]))


def test_hypotheses_without_words_have_nothing_to_help_with(corpus: Path, tmp_path: Path, hypotheses: Path) -> None:
    with pytest.raises(ConfigError, match="--hypotheses needs --words"):
        distill(plan_for(corpus, tmp_path / "distilled", hypotheses=hypotheses, words=[]))
