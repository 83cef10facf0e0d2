"""Every setting of the service: a flag and an ATTENDANT_ variable of the same name; the flag wins."""

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any

from attendant import kernels
from attendant.service.client_keys import ClientLimit, is_key, read_keys, read_limits, unknown_limits
from attendant.service.language_pairs import LanguagePair, read_pairs

DEFAULT_BUNDLE = Path(__file__).parent / "default_bundle"
PREFIX = "ATTENDANT_"
NOT_SETTINGS = {"ATTENDANT_TRACEBACK", kernels.SETTING}  # read by the command itself, and by attendant.kernels
SWITCHES = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
ONLY_WITH_MODELS = ("default_model", "load", "max_loaded")


@dataclass(frozen=True)
class Kind:
    """A type of setting: how a text is read, a ValueError if it cannot be, and what it takes, in words."""

    read: Callable[[str], Any]
    takes: str


def _read_switch(text: str) -> bool:
    if text.lower() not in SWITCHES:
        raise ValueError("no switch")
    return SWITCHES[text.lower()]


TEXT = Kind(str, "a text that is not empty")
KEYS = Kind(read_keys, "keys of visible ASCII characters, each with or without NAME: before it, comma-separated")
PAIRS = Kind(read_pairs, "MODEL:SOURCE:TARGET with codes such as en, comma-separated")
LIMITS = Kind(read_limits, "NAME:REQUESTS:TOKENS, comma-separated")
KINDS: dict[Any, Kind] = {
    bool: Kind(_read_switch, "true or false"),
    int: Kind(int, "a whole number"),
    float: Kind(float, "a number"),
    str: TEXT,
    str | None: TEXT,
    Path | None: Kind(Path, "a directory"),
    tuple[str, ...]: KEYS,
    tuple[ClientLimit, ...]: LIMITS,
    tuple[LanguagePair, ...]: PAIRS,
}


class SettingsError(Exception):
    """Everything wrong with the settings, a sentence each."""

    def __init__(self, sentences: list[str], exit_code: int) -> None:
        super().__init__(" ".join(sentences))
        self.sentences, self.exit_code = sentences, exit_code


def setting(
    default: Any,
    about: str,
    *,
    unit: str = "",
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    secret: bool = False,
) -> Any:
    """A dataclass field with the metadata that help, documentation and checks need."""
    metadata = {"about": about, "unit": unit, "low": low, "high": high, "choices": choices}
    return field(default=default, repr=not secret, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Settings:
    bundle: Path | None = setting(None, "the bundle's directory; without it, the embedded model")  # noqa: RUF009
    model: str | None = setting(
        None, "a model of Hugging Face by its name; the first start downloads, imports and exports it, into the cache"
    )
    revision: str | None = setting(None, "with --model, a branch, a tag or a commit of it; without it, main")
    cache_dir: Path | None = setting(  # noqa: RUF009
        None, "the cache of models by name; without it, attendant in XDG_CACHE_HOME, else in ~/.cache"
    )
    models: Path | None = setting(None, "serve every bundle under this directory, each by its directory's name")  # noqa: RUF009
    default_model: str | None = setting(
        None, "with --models, the model of requests that name none; without it, the one called default, or the only one"
    )
    load: str = setting(
        "eager",
        "with --models, when a model is loaded: at the start, or on its first request",
        choices=("eager", "lazy"),
    )
    max_loaded: int = setting(
        0,
        "with --models, models loaded at once, the least recently used is evicted; 0: as many as fit in memory",
        low=0,
        high=10**6,
    )
    host: str = setting("127.0.0.1", "the address to listen on; 0.0.0.0 is every one")
    port: int = setting(8000, "the port to listen on; 0: any free one", low=0, high=65535)
    api_keys: tuple[str, ...] = setting(
        (), "keys, comma-separated; with any, requests must carry one; NAME:KEY names a client", secret=True
    )
    admin_keys: tuple[str, ...] = setting((), "keys that may also reload, comma-separated", secret=True)
    client_limits: tuple[ClientLimit, ...] = setting(
        (),
        "most requests and tokens a minute for the keys of a name; 0: any number; *: every other client; over it 429",
    )
    provider: str = setting("auto", "what computes; auto: cuda where it answers", choices=("auto", "cpu", "cuda"))
    precision: str = setting(
        "auto", "which variant of the bundle; auto: the fastest here", choices=("auto", "int8", "fp32", "fp16")
    )
    threads: int = setting(
        0,
        "threads that compute; 0: the container's processors, or one a lane if a small model gains little from more",
        low=0,
        high=1024,
    )
    lanes: int = setting(
        0, "batches decoded side by side on a share of the threads each; 0: by threads and memory limit", low=0, high=64
    )
    max_rows: int = setting(
        0,
        "most hypotheses computed in one step of a lane; 0: as many as the memory limit allows, up to 72",
        low=0,
        high=65536,
    )
    max_queue_requests: int = setting(1024, "maximum queued texts; over it requests get 429", low=1, high=10**6)
    max_queue_tokens: int = setting(
        200_000,
        "token budget of all that waits, source and possible target tokens, large requests apart; over it 429",
        unit="tokens",
        low=1,
        high=10**9,
    )
    cache_megabytes: int = setting(
        0,
        "memory for answers that each model keeps, for requests that come again; 0: none",
        unit="MB",
        low=0,
        high=10**6,
    )
    share_in_flight: bool = setting(True, "identical texts asked for at the same time are computed once")
    memory_megabytes: int = setting(
        0,
        "memory that the process may come to hold; 0: the container's limit, or the machine's",
        unit="MB",
        low=0,
        high=10**9,
    )
    max_body_bytes: int = setting(
        2**20,
        "largest body of a request, before and after decompression; over it 413",
        unit="bytes",
        low=1024,
        high=2**30,
    )
    allow_unknown: str = setting(
        "auto",
        "read sources with what the vocabulary lacks, where a request does not say; auto: as the bundle has it",
        choices=("auto", "true", "false"),
    )
    max_inputs: int = setting(256, "most texts in one request", low=1, high=10**9)
    max_segments: int = setting(
        1024, "most segments that the texts of one request may be split into", low=1, high=10**9
    )
    max_beam_size: int = setting(32, "largest beam_size and num_hypotheses of a request", low=1, high=4096)
    max_phrases: int = setting(
        1000, "most terms, forms of a term, forbidden phrases and choices of a request, of each kind", low=1, high=10**9
    )
    explain: bool = setting(True, "answer POST /v1/explain")
    max_explain_values: int = setting(
        5_000_000, "most attention weights in an answer of /v1/explain; over it 422", low=1, high=10**9
    )
    timeout_ms: int = setting(
        60_000, "the deadline of a request that names none; 0: none", unit="ms", low=0, high=86_400_000
    )
    max_timeout_ms: int = setting(
        600_000,
        "the longest deadline that a request may name; longer ones are cut to it; 0: any",
        unit="ms",
        low=0,
        high=86_400_000,
    )
    libretranslate: bool = setting(False, "answer LibreTranslate's API too: /translate, /detect, /languages")
    language_pairs: tuple[LanguagePair, ...] = setting(
        (), "languages of models that have no choice of them, for LibreTranslate's API and for sentences"
    )
    load_seconds: float = setting(
        600.0, "time for a bundle to be loaded; over it the load is given up", unit="s", low=0.1, high=86_400
    )
    grace_seconds: float = setting(
        60.0, "time for accepted requests to finish, at a stop and after a reload", unit="s", low=0, high=86_400
    )
    keep_alive_seconds: int = setting(75, "time before an idle connection is closed", unit="s", low=1, high=86_400)
    max_connections: int = setting(900, "most connections open at once; over it one is answered 503", low=1, high=10**6)
    header_seconds: float = setting(
        10.0, "time for a connection to send its headers; over it 408", unit="s", low=0.1, high=86_400
    )
    body_seconds: float = setting(
        30.0, "time for a request to send its body; over it 408", unit="s", low=0.1, high=86_400
    )
    send_seconds: float = setting(
        30.0,
        "time in which a client may read nothing of its answer; over it the connection ends",
        unit="s",
        low=0.1,
        high=86_400,
    )
    log_format: str = setting("text", "format of the log on standard error", choices=("text", "json"))
    log_level: str = setting(
        "info", "minimum log level; requests are info", choices=("debug", "info", "warning", "error")
    )
    log_texts: bool = setting(False, "also log the texts of requests and answers")
    tracing: bool = setting(False, "spans of every request through OpenTelemetry; needs attendant-transformer[otel]")

    def __post_init__(self) -> None:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        sentences = [s for f in fields(self) if (s := _problem(f, values[f.name], f.name)) is not None]
        sentences += _contradictions(values)
        if sentences:
            raise SettingsError(sentences, 1)

    def pair_of(self, model: str) -> tuple[str | None, str | None]:
        """The languages of a model that has no choice of them, if they are given."""
        return next(((pair.source, pair.target) for pair in self.language_pairs if pair.model == model), (None, None))


def variable(name: str) -> str:
    return PREFIX + name.upper()


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def read_settings(flags: Mapping[str, str], environment: Mapping[str, str]) -> Settings:
    """Settings from flags (name: text), else the environment, else defaults; SettingsError lists all problems."""
    known = {f.name: f for f in fields(Settings)}
    values: dict[str, Any] = {}
    problems = [_unknown(name) for name in sorted(environment) if _is_unknown(name)]
    bad_flag = False
    for name, setting_field in known.items():
        shown = flag(name) if name in flags else variable(name)
        text = flags.get(name, environment.get(variable(name)))
        if text is None:
            continue
        try:
            values[name] = _parse(setting_field, text)
            problem = _problem(setting_field, values[name], shown)
        except ValueError:
            problem = f"{shown} takes {takes(setting_field)}, not {text!r}."
        if problem is not None:
            problems.append(problem)
            bad_flag |= name in flags
    if contradictions := _contradictions(values):
        problems += contradictions
        bad_flag |= any(name in flags for name in ("models", "model", "revision", "client_limits", *ONLY_WITH_MODELS))
    if problem := kernels.unusable(environment.get(kernels.SETTING, "")):
        raise SettingsError([problem, *problems], kernels.UnusableError.exit_code)
    if problems:
        raise SettingsError(problems, 2 if bad_flag else 1)
    return Settings(**values)


def takes(setting_field: Field[Any]) -> str:
    """What a setting takes, in words."""
    about = setting_field.metadata
    if about["choices"]:
        return "one of " + ", ".join(about["choices"])
    kind = KINDS[setting_field.type].takes
    return kind if about["low"] is None else f"{kind} from {about['low']} to {about['high']}"


def _parse(setting_field: Field[Any], text: str) -> Any:
    """The value of a text, or a ValueError."""
    text = text.strip()
    if not text:
        raise ValueError("empty")
    return KINDS[setting_field.type].read(text)


def _problem(setting_field: Field[Any], value: Any, shown: str) -> str | None:
    """What is wrong with a value, as a sentence; a key is never shown."""
    about = setting_field.metadata
    kind = KINDS[setting_field.type]
    if kind is KEYS:
        good = all(map(is_key, value))
        return None if good else f"{shown} takes {takes(setting_field)}; one of those given is not."
    good = not about["choices"] or value in about["choices"]
    if about["low"] is not None:
        good = math.isfinite(value) and about["low"] <= value <= about["high"]
    elif kind is TEXT and not about["choices"]:
        good = value != ""
    return None if good else f"{shown} takes {takes(setting_field)}, not {value!r}."


def _contradictions(values: Mapping[str, Any]) -> list[str]:
    """Settings that contradict each other, as sentences; `values` may lack those that were not given."""
    keys = (*values.get("api_keys", ()), *values.get("admin_keys", ()))
    sentences = [
        f"--client-limits has {name!r}, and no key has this name; give it one, as NAME:KEY, or leave the limit out."
        for name in unknown_limits(values.get("client_limits", ()), keys)
    ]
    if values.get("models") is None:
        given = [name for name in ONLY_WITH_MODELS if values.get(name) not in (None, 0, "eager")]
        sentences += [
            f"{flag(each)} is for several models; give their directory with --models, or leave it out."
            for each in given
        ]
    elif values.get("bundle") is not None:
        sentences.append("--bundle and --models are both given; put the bundle among the models, or leave one out.")
    if values.get("model") is None:
        if values.get("revision") is not None:
            sentences.append("--revision is for a model by name; give one with --model, or leave it out.")
    else:
        sentences += [
            f"--model and --{each} are both given; leave one out."
            for each in ("bundle", "models")
            if values.get(each) is not None
        ]
    return sentences


def _is_unknown(name: str) -> bool:
    settings = {variable(f.name) for f in fields(Settings)}
    return name.startswith(PREFIX) and name not in settings | NOT_SETTINGS


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name.removeprefix(PREFIX).lower(), [f.name for f in fields(Settings)], 1)
    hint = f"did you mean {variable(near[0])}?" if near else "attendant serve --help lists the settings."
    return f"{name}: unknown setting; {hint}"
