"""Training: `train(plan)` turns two TSV files into a run directory, and can be stopped and resumed at any moment.

The randomness of a step depends on the seed and the step alone, and the order of the data on the seed and the epoch, so
a resumed run computes what an uninterrupted one would have.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attendant.common.progress import TrainingProgress
from attendant.model import checkpoint, config
from attendant.model.corpus.data import Batch, EncodedCorpus, epoch_batches
from attendant.model.distillation.teachers import TeacherDistributions
from attendant.model.errors import InterruptedRunError, UserError
from attendant.model.files import locked
from attendant.model.text import tokenizer
from attendant.model.threads import set_torch_threads
from attendant.model.training import initial
from attendant.model.training.average import MovingAverage
from attendant.model.training.device import pick_device, pick_precision
from attendant.model.training.distributed import World
from attendant.model.training.estimate import duration, overview
from attendant.model.training.history import History
from attendant.model.training.loss import distilled_cross_entropy, smoothed_cross_entropy
from attendant.model.training.optim import learning_rate, make_optimizer
from attendant.model.training.prepare import Plan, prepare
from attendant.model.training.stop import StopRequest
from attendant.model.training.validate import Validator, format_metrics
from attendant.model.transformer import Transformer

MEASURED_TOKENS = 8192  # padded tokens, at most, of the batch on which the number of threads is measured
OTHER_WORK = 1.25  # an update, optimizer included, takes this many times as long as its forward and backward pass


@dataclass(frozen=True)
class Result:
    """What a training run ended with."""

    run: Path
    step: int
    best_step: int
    best_value: float
    seconds: float


@dataclass
class Position:
    """Where a run is and how it is doing: what a checkpoint holds beside weights, optimizer and moving average."""

    step: int = 0
    epoch: int = 0
    optimizer: str = ""  # whose state the checkpoint holds
    batch: int = 0  # batches taken from this epoch
    best_step: int = 0
    best_value: float = math.inf
    selected_by: str = ""  # what best_value measures
    stale: int = 0  # validations since the best
    seconds: float = 0.0  # spent training, over all resumptions
    threads: int = 0  # that torch computed with; 0: not recorded
    unlogged: tuple[float, ...] = (0.0, 0.0, 0.0)  # loss summed, tokens and pairs since the last line of history


def train(plan: Plan) -> Result:
    """Train to the end. A signal raises InterruptedRunError once a checkpoint is written."""
    threads = torch.get_num_threads()
    with World.join(plan.train.device) as world, StopRequest(says=world.is_first) as stop:
        alone = locked(plan.out) if world.is_first else contextlib.nullcontext()
        try:
            with alone:
                return Trainer(plan, world, stop).run()
        except KeyboardInterrupt:
            raise InterruptedRunError(f"stopped at once; {_how_to_resume(plan.out)}", stop.signal) from None
        finally:
            torch.set_num_threads(threads)


def _how_to_resume(run: Path) -> str:
    last = checkpoint.latest(run)
    if last is None:
        return f"{run} has no checkpoint yet, so --resume begins anew."
    return f"--resume goes on from {last}."


class Trainer:
    def __init__(self, plan: Plan, world: World, stop: StopRequest) -> None:
        self.plan, self.world, self.stop, self.options = plan, world, stop, plan.train
        self.device = pick_device(plan.train.device, world.local_rank)
        self.precision = pick_precision(plan.train.precision, self.device)
        world.once(lambda: prepare(plan))
        self._check_shared()
        self.source = tokenizer.load(plan.out / checkpoint.SOURCE_TOKENIZER)
        self.target = tokenizer.load(plan.out / checkpoint.TARGET_TOKENIZER)
        self.model_config = config.model_from_json(
            checkpoint.read_config(plan.out)["model"], plan.out / checkpoint.CONFIG
        )
        self.corpus = EncodedCorpus.open(plan.out / "data" / "train")
        self.teachers = TeacherDistributions.open(plan.distilled) if plan.distilled else None
        valid = EncodedCorpus.open(plan.out / "data" / "valid")
        self.validator = Validator(
            plan.train, valid, plan.valid_file, self.source, self.target, self.model_config.max_length
        )
        torch.manual_seed(plan.train.seed)
        self.model = Transformer(self.model_config).to(self.device)
        self.forward = torch.compile(self.model, dynamic=True) if plan.train.compile else self.model
        self.optimizer = make_optimizer(self.model, plan.train)
        self.ema = MovingAverage(plan.train.ema) if plan.train.ema else None
        self.position = Position()
        self.told_to_stop = False
        self.history = History(plan.out / checkpoint.HISTORY, writes=world.is_first)

    def _check_shared(self) -> None:
        """Refuse a run directory that this process does not see, as on a second machine with a disk of its own."""
        if not (self.plan.out / checkpoint.CONFIG).exists():
            raise UserError(
                f"process {self.world.rank} of {self.world.size} does not see {self.plan.out}, which the first process "
                "wrote: on several machines, --out and the data are on a file system that all of them share."
            )

    def run(self) -> Result:
        self._resume()
        batches = self._batches()
        if not self._done():
            first = next(batches)
            self._begin(first)
            batches = itertools.chain([first], batches)
        started, seconds_before = time.monotonic(), self.position.seconds
        progress = TrainingProgress(self.options.steps, self.position.step, shows=self.world.is_first)
        self.stop.arm()
        while not self._done():
            loss, tokens, pairs = self._update([next(batches) for _ in range(self.options.accumulate)])
            self.position.step += 1
            self.position.seconds = seconds_before + time.monotonic() - started
            progress.advance(loss, tokens)
            self._log(loss, tokens, pairs)
            if self.position.step % self.options.validate_every == 0 or self.position.step == self.options.steps:
                self._save_and_validate(progress)
            if self._stopping() and not self._done():
                progress.close()
                self._save_and_stop()
        progress.close()
        return Result(
            self.plan.out, self.position.step, self.position.best_step, self.position.best_value, self.position.seconds
        )

    def _resume(self) -> None:
        saved = checkpoint.latest(self.plan.out)
        if saved:
            self.position = Position(**checkpoint.read_state(saved))
            checkpoint.load_weights(self.model, saved / checkpoint.MODEL)
            if self.position.optimizer == self.options.optimizer:  # another starts without state
                checkpoint.load_optimizer(saved, self.optimizer)
            if self.ema:
                self.ema.weights = checkpoint.load_ema(saved, self.device)
        elif self.plan.init_from:
            initial.load_weights(self.model, self.plan.init_from)
        if self.plan.resume:
            self._say(f"going on from {saved}" if saved else f"{self.plan.out} has no checkpoint yet: beginning anew")
        if self.position.selected_by != self.validator.criterion:  # another metric: not comparable
            self.position.selected_by, self.position.best_value, self.position.best_step = (
                self.validator.criterion,
                math.inf,
                0,
            )
            self.position.stale = 0
        self.position.optimizer = self.options.optimizer
        self.history.cut_after(self.position.step)
        dropout = {k: v for k, v in config.to_json(self.model_config).items() if k.endswith("dropout")}
        self.history.add_options(self.position.step, config.to_json(self.options) | dropout)

    def _done(self) -> bool:
        return self.position.step >= self.options.steps or 0 < self.options.patience <= self.position.stale

    def _stopping(self) -> bool:
        """Whether a signal has come; several processes all stop at the same step."""
        return self.told_to_stop or (self.world.size == 1 and self.stop.requested)

    def _begin(self, batch: Batch) -> None:
        """Choose the number of threads, and say what is trained and how long it may take."""
        seconds = self._measure(batch)
        self.position.threads = torch.get_num_threads()
        for line in overview(checkpoint.read_config(self.plan.out), self.model.parameter_count()):
            self._say(line)
        if seconds is not None:
            left = (self.options.steps - self.position.step) * self.options.accumulate * seconds
            self._say(
                f"time: about {duration(left)} without validation, by a first measurement, "
                f"with {self.position.threads} thread{'s' if self.position.threads > 1 else ''} (--threads)"
            )

    def _measure(self, batch: Batch) -> float | None:
        """Set the number of threads; returns the seconds of a batch, None if not measured. Training is not affected."""
        asked, before = self.plan.threads, self.position.threads
        if asked is None or self.world.size > 1 or self.device.type != "cpu" or self.options.compile:
            if asked:
                torch.set_num_threads(asked)
            return None
        if self.position.step and not asked:  # keep the number, for the same bits
            asked = before if 0 < before <= torch.get_num_threads() else torch.get_num_threads()
        rows = max(1, MEASURED_TOKENS // (batch.source.shape[1] + batch.target.shape[1]))
        some = batch.rows(slice(rows))

        def work() -> None:
            self.model.train()
            self._loss(some).backward()
            self.optimizer.zero_grad(set_to_none=True)

        _, seconds = set_torch_threads(asked, work)  # every step reseeds torch, so these draws change no step
        return OTHER_WORK * seconds * len(batch.source) / len(some.source)

    def _say(self, line: str) -> None:
        if self.world.is_first:
            print(line, flush=True)

    def _batches(self) -> Iterator[Batch]:
        """The batches from the current position on, epoch after epoch; moves the position along."""
        while True:
            skip = self.position.batch
            o = self.options
            batches = epoch_batches(
                self.corpus, o.batch_tokens, o.seed, self.position.epoch, o.one_target, self.teachers
            )
            for number, batch in enumerate(batches):
                if number >= skip:
                    self.position.batch = number + 1
                    yield batch
            self.position.epoch, self.position.batch = self.position.epoch + 1, 0

    def _update(self, batches: list[Batch]) -> tuple[float, int, int]:
        """One optimizer update on the mean loss of all target tokens; returns that loss, the tokens and the pairs."""
        self.model.train()
        torch.manual_seed(_step_seed(self.options.seed, self.position.step, self.world.rank))
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros(2, device=self.device)  # the loss, and how many processes are to stop
        tokens = sum(batch.target_tokens for batch in batches)
        for batch in batches:
            mine = self.world.rows_of(batch)
            if mine is not None:
                loss = self._loss(mine.to(self.device))
                (loss / tokens).backward()
                total[0] += loss.detach()
        self.world.sum_gradients(self.model)
        total[1] = self.stop.requested
        self.world.sum(total)
        self._clip()
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.position.step + 1, self.options, self.model_config.d_model)
        self.optimizer.step()
        if self.ema:
            self.ema.update(checkpoint.weights_of(self.model), self.position.step)
        self.told_to_stop = bool(total[1])
        return float(total[0]) / tokens, tokens, sum(len(batch.source) for batch in batches)

    def _clip(self) -> None:
        """Clip the gradients; UserError, before they reach the weights, if they are not finite."""
        parameters = list(self.model.parameters())
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        self._refuse_infinite("norm of the gradients", float(norm), self.position.step + 1)
        if self.options.clip:
            torch.nn.utils.clip_grads_with_norm_(parameters, self.options.clip, norm)

    def _refuse_infinite(self, what: str, value: float, step: int) -> None:
        if not math.isfinite(value):
            raise UserError(
                f"The {what} is {value} at step {step}; lower --set learning_rate= or raise warmup=. "
                f"No checkpoint was written of it: {_how_to_resume(self.plan.out)}"
            )

    def _loss(self, batch: Batch) -> Tensor:
        """The training loss, summed over a batch."""
        smoothing = self.options.label_smoothing
        logits, target = self._logits(batch), batch.target[:, 1:]
        tokens, probabilities = batch.teacher_tokens, batch.teacher_probabilities
        if tokens is None or probabilities is None:
            return smoothed_cross_entropy(logits, target, smoothing)
        weight = self.options.teacher_weight
        return distilled_cross_entropy(logits, target, tokens, probabilities, weight, smoothing)

    def _validation_loss(self, batch: Batch) -> Tensor:
        batch = batch.to(self.device)
        return smoothed_cross_entropy(self._logits(batch), batch.target[:, 1:], smoothing=0.0)

    def _logits(self, batch: Batch) -> Tensor:
        with self._autocast():
            logits: Tensor = self.forward(batch.source, batch.target[:, :-1])
            return logits.float()

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self.precision == "bf16":
            return torch.autocast(self.device.type, torch.bfloat16)
        return contextlib.nullcontext()

    def _log(self, loss: float, tokens: int, pairs: int) -> None:
        """A line of history every few steps: the mean loss per token over them, their tokens and pairs."""
        self._refuse_infinite("loss", loss, self.position.step)
        before = self.position.unlogged
        total, all_tokens, all_pairs = before[0] + loss * tokens, before[1] + tokens, before[2] + pairs
        if self.position.step % self.options.log_every:
            self.position.unlogged = (total, all_tokens, all_pairs)
            return
        self.position.unlogged = (0.0, 0.0, 0.0)
        rate = self.optimizer.param_groups[0]["lr"]
        self.history.add(
            kind="train",
            step=self.position.step,
            epoch=self.position.epoch,
            loss=total / all_tokens,
            learning_rate=rate,
            tokens=int(all_tokens),
            pairs=int(all_pairs),
            seconds=round(self.position.seconds, 3),
        )

    def _save_and_validate(self, progress: TrainingProgress) -> None:
        """Validate the averaged weights, keep them if they are the best yet, and write a checkpoint."""
        if not self.world.is_first:
            self.world.barrier()
            self._follow()
            return
        current = {name: value.clone() for name, value in checkpoint.weights_of(self.model).items()}
        averaged = self._averaged(current)
        checkpoint.set_weights(self.model, averaged)
        self.model.eval()
        metrics = self.validator.metrics(self.model, self._validation_loss)
        self._refuse_infinite("validation loss", metrics["loss"], self.position.step)
        value = self.validator.value(metrics)
        if value < self.position.best_value:
            self.position.best_value, self.position.best_step, self.position.stale = value, self.position.step, 0
            checkpoint.save_best(self.plan.out, self.position.step, averaged, {"step": self.position.step, **metrics})
        else:
            self.position.stale += 1
        checkpoint.set_weights(self.model, current)
        self.history.add(
            kind="valid",
            step=self.position.step,
            epoch=self.position.epoch,
            seconds=round(self.position.seconds, 3),
            **metrics,
        )
        self._save("step")
        checkpoint.prune(self.plan.out, max(self.options.keep, self.options.average), self.position.best_step)
        best = " (best so far)" if self.position.best_step == self.position.step else ""
        progress.say(f"step {self.position.step:,}: validation {format_metrics(metrics)}{best}")
        self.world.barrier()

    def _save(self, kind: str) -> Path:
        ema = self.ema.weights if self.ema else None
        state = dataclasses.asdict(self.position)
        return checkpoint.save_training(self.plan.out, self.position.step, self.model, self.optimizer, state, ema, kind)

    def _save_and_stop(self) -> None:
        validated = checkpoint.checkpoint_path(self.plan.out, self.position.step)
        if self.world.is_first and not validated.exists():
            self._save("stopped")
        self.world.barrier()
        where = f"stopped at step {self.position.step:,} of {self.options.steps:,}"
        raise InterruptedRunError(f"{where}; {_how_to_resume(self.plan.out)}", self.stop.signal)

    def _averaged(self, current: dict[str, Tensor]) -> dict[str, Tensor]:
        """The moving average, else the mean of the current weights and the last checkpoints."""
        if self.ema:
            return self.ema.weights
        earlier = checkpoint.checkpoints(self.plan.out)[-(self.options.average - 1) :]
        return checkpoint.average_with(
            current, [path / checkpoint.MODEL for path in earlier] if self.options.average > 1 else []
        )

    def _follow(self) -> None:
        """In processes other than the first: take over the position that the first has saved."""
        self.position = Position(**checkpoint.read_state(checkpoint.checkpoints(self.plan.out)[-1]))


def _step_seed(seed: int, step: int, rank: int) -> int:
    """A seed of its own for each step and process."""
    digest = hashlib.sha256(f"{seed}/{step}/{rank}".encode()).digest()
    return int.from_bytes(digest[:8]) >> 1
