"""What a recipe may say: every key with its type, default, unit and meaning. Knows neither YAML nor files."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from anychip.recipe.conflicts import find_conflicts
from anychip.recipe.limits import LimitsSection
from anychip.recipe.quantities import (
    Count,
    DeviceName,
    Expect,
    FilePath,
    HostName,
    Listed,
    Origin,
    Positive,
    Seconds,
    Slug,
    Source,
    Specifier,
    Text,
    Unit,
    Word,
)
from anychip_sdk.policies import POLICIES
from anychip_sdk.profiles import Profile

Dtype = Literal["auto", "float32", "float16", "bfloat16"]
FusionPolicy = Annotated[Word, Field(examples=list(POLICIES))]


class Section(BaseModel):
    """A mapping of a recipe: frozen, strictly typed, no key but its own."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ModelSection(Section):
    """Which model, and how it is read."""

    source: Annotated[
        Source,
        Field(
            description="Where the checkpoint is. A relative path is relative to the file that it is written in; "
            "a model in an installed Python package and a path never touch the network."
        ),
    ]
    revision: Annotated[
        Text | None,
        Field(description="The revision of a model on a hub: a branch, a tag or a commit. null: its main one."),
    ] = None
    dtype: Annotated[
        Dtype,
        Field(description="The type of weights and activations. auto: the checkpoint's own, where the device has it."),
    ] = "auto"
    quantization: Annotated[
        Literal["none", "auto", "int8", "int4", "int4-128"],
        Field(
            description="How the weights of matrix products are held on the device. none: expanded to dtype, however "
            "they are stored. auto: a GGUF's 8- and 4-bit integers as they are, all else in dtype. int8: a scale per "
            "row. int4: a scale and a minimum per 32 neighbours, int4-128 per 128. A GGUF's own integers of as many "
            "bits are taken as they are. Logits are computed with 8 bits at least; embeddings, norms and biases stay "
            "in dtype."
        ),
    ] = "none"
    context_length: Annotated[
        Count | None,
        Unit("tokens"),
        Field(description="The most tokens of a request, prompt and output together. null: the model's own limit."),
    ] = None
    thinking: Annotated[
        Literal["off", "on", "auto"],
        Field(description="Whether the model thinks before it answers. auto: each request decides."),
    ] = "auto"


class Requires(Section):
    """What must hold of the backend before anything is loaded."""

    driver: Annotated[Specifier | None, Field(description="The versions of the device's driver that will do.")] = None
    plugin: Annotated[Specifier | None, Field(description="The versions of the backend's package that will do.")] = None
    conformance: Annotated[
        Profile | None,
        Field(description="The conformance profile for which the backend must hold a certificate."),
    ] = None


class BackendSection(Section):
    """Which chip."""

    name: Annotated[
        Word,
        Field(
            description="An installed backend. auto: the best one whose device is present, with the reason in the "
            "plan. native: the shared object at plugin_path."
        ),
    ] = "auto"
    plugin_path: Annotated[
        FilePath | None,
        Field(
            description="The shared object of a native backend; only with name: native. A relative path is relative to "
            "the file that it is written in."
        ),
    ] = None
    device: Annotated[
        DeviceName | None, Field(description="The device, in the backend's own words. null: its first one.")
    ] = None
    emulate: Annotated[
        bool, Field(description="Run on the backend's emulator instead of its device; said loudly everywhere.")
    ] = False
    threads: Annotated[
        Annotated[int, Field(ge=1, le=1024)] | None,
        Unit("threads"),
        Field(description="Host threads for the backend's kernels. null: the backend decides."),
    ] = None
    requires: Annotated[Requires, Field(description="Checked before anything is loaded.")] = Requires()


class MemorySection(Section):
    """What share of the device's memory, and how the KV pool uses it."""

    static_fraction: Annotated[
        float,
        Field(gt=0, le=1, description="The share of the device's capacity for weights and KV pool together."),
        Expect("a number above 0 and at most 1, such as 0.8"),
    ] = 0.8
    kv_dtype: Annotated[Dtype, Field(description="The type of keys and values in the pool. auto: the model's.")] = (
        "auto"
    )
    page_size: Annotated[
        Literal["auto"] | Positive,
        Unit("tokens"),
        Field(description="Tokens in a page of the KV pool. auto: the backend's choice."),
    ] = "auto"
    kv_tokens: Annotated[
        Literal["auto"] | Count,
        Unit("tokens"),
        Field(description="The most tokens in the KV pool. auto: what static_fraction leaves after the weights."),
    ] = "auto"


class SchedulerSection(Section):
    """How requests share a step."""

    chunked_prefill_size: Annotated[
        Literal["auto"] | Count,
        Unit("tokens"),
        Field(
            description="The most prompt tokens in one step; longer prompts are read in chunks of it. auto: what the "
            "device reads at nearly full speed, by its backend's measurements. Beside running requests a step takes "
            "fewer where slo.tpot_p95 asks for it."
        ),
    ] = "auto"
    max_running_requests: Annotated[
        Literal["auto"] | Positive,
        Unit("requests"),
        Field(description="The most requests in one step. auto: from the KV pool's size."),
    ] = "auto"
    policy: Annotated[
        Literal["lpm", "fcfs"],
        Field(
            description="Who goes first. lpm: the longest prefix already computed, with ageing; fcfs: who came first. "
            "With prefix_cache off the two are the same."
        ),
    ] = "lpm"
    prefix_cache: Annotated[bool, Field(description="Keep computed prefixes and share them between requests.")] = True
    overlap: Annotated[
        Literal["auto"] | bool,
        Field(
            description="Schedule and submit the next step while one runs. Tokens are the same either way. auto: where "
            "the device has asynchronous streams."
        ),
    ] = "auto"


class FusionSection(Section):
    """Which operations are folded into one kernel."""

    policies: Annotated[
        Literal["auto"] | Listed[FusionPolicy],
        Field(
            description="The fusions to apply. auto: every one that the backend has a kernel for; []: none. "
            f"Built in are {', '.join(POLICIES)}; a backend may bring more."
        ),
    ] = "auto"
    verify: Annotated[
        bool, Field(description="Compare fused and unfused outputs at load and refuse a fusion that differs.")
    ] = True
    on_missing: Annotated[
        Literal["error", "warn", "ignore"],
        Field(description="What happens when a named fusion does not match the model or has no kernel."),
    ] = "warn"


class OpOverride(Section):
    """A choice for one operation that the backend would make otherwise."""

    op: Annotated[Word, Field(description="The operation's name in the catalogue, e.g. linear.")]
    dtype: Annotated[Word | None, Field(description="Only for this type. null: for all.")] = None
    provider: Annotated[Word | None, Field(description="The provider to take.")] = None
    ban: Annotated[Listed[Word], Field(description="Providers never to take.")] = ()
    compute_dtype: Annotated[
        Literal["float32", "float16", "bfloat16"] | None,
        Field(description="Compute in this type and convert the result back."),
    ] = None


class OpsSection(Section):
    """Which kernels."""

    fallback: Annotated[
        Literal["warn", "forbid", "allow"],
        Field(description="What happens when no kernel fits and the reference would run instead."),
    ] = "warn"
    overrides: Annotated[Listed[OpOverride], Field(description="Choices for single operations.")] = ()


class SecretRef(Section):
    """Where a secret is; recipes never hold one."""

    env: Annotated[
        Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$"), Expect("the name of an environment variable")]
        | None,
        Field(description="The environment variable that holds it."),
    ] = None
    file: Annotated[Text | None, Field(description="The file that holds it.")] = None

    @model_validator(mode="after")
    def _names_one_place(self) -> SecretRef:
        if (self.env is None) == (self.file is None):
            raise ValueError("expected exactly one of env and file")
        return self


class TlsSection(Section):
    """What the service proves its name with; clients then use https."""

    certificate: Annotated[
        Text,
        Expect("the path of a file"),
        Field(description="The certificate's PEM file, with the chain behind it. A renewed one is taken up at once."),
    ]
    key: Annotated[
        Text,
        Expect("the path of a file"),
        Field(description="The PEM file with the certificate's private key, not encrypted."),
    ]


class WatchdogSection(Section):
    """When the engine counts as hung, and what happens then."""

    floor: Annotated[
        Seconds,
        Expect("a duration such as 20s"),
        Field(
            description="How long the engine may give no sign of life, and the least that a step may take. A load may "
            "take longer."
        ),
    ] = Seconds(20)
    factor: Annotated[
        float,
        Field(ge=1, le=1000, description="A step may take so many times what the plan predicts, or the warm-up took."),
        Expect("a number from 1 to 1000"),
    ] = 20.0
    load: Annotated[
        Seconds,
        Expect("a duration such as 30m"),
        Field(description="How long loading may make no progress."),
    ] = Seconds(1800, "30m")
    on_hang: Annotated[
        Literal["restart", "report"],
        Field(
            description="What happens to an engine that hangs. restart: it is killed and started again. report: "
            "/health and the log tell it, until it goes on. Running requests fail either way."
        ),
    ] = "restart"
    max_restarts: Annotated[
        int,
        Field(
            ge=0,
            description="How often an engine that ended or hung is started again, without a healthy minute between. "
            "Then the service ends.",
        ),
    ] = 8


class ServerSection(Section):
    """Where the service listens, and to whom."""

    host: Annotated[Text, Field(description="The address to listen on. 0.0.0.0: every one of this machine.")] = (
        "127.0.0.1"
    )
    port: Annotated[int, Field(ge=0, le=65535, description="The port. 0: a free one.")] = 8000
    served_name: Annotated[
        Text | None, Field(description="The model's name in the API. null: the source's last part.")
    ] = None
    api_key: Annotated[
        SecretRef | None,
        Field(
            description="What clients must send as bearer token: {env: NAME}, or {file: path} for any number of keys, "
            "one a line, `name: key` or the key alone. A changed file counts at once. null: nothing."
        ),
        Expect("{env: NAME} or {file: path}"),
    ] = None
    cors: Annotated[
        Listed[Origin],
        Field(
            description="Origins of web pages that may use the service from a browser, such as "
            'https://chat.example.com; "*": all. []: none.'
        ),
    ] = ()
    allowed_hosts: Annotated[
        Listed[HostName],
        Field(
            description="Names that requests may be for (their Host), beside localhost and its addresses; requests for "
            'others get 421. "*": any. []: no others where host is an address of this machine alone, any where not.'
        ),
    ] = ()
    tls: Annotated[
        TlsSection | None, Field(description="The certificate that the service shows. null: plain HTTP.")
    ] = None
    unknown_fields: Annotated[
        Literal["strict", "lenient"],
        Field(
            description="What becomes of fields of a request that nobody knows. strict: it is refused, with their "
            "names. lenient: they are ignored, named in the reply's X-Ignored-Fields header and counted in /metrics. "
            "Fields that would change the answer and aren't offered are refused by both."
        ),
    ] = "strict"
    max_queued_requests: Annotated[
        int,
        Unit("requests"),
        Field(
            ge=0,
            description="The most requests that wait while all places (max_running_requests) are taken; further ones "
            "get 429. 0: none waits.",
        ),
    ] = 512
    limits: Annotated[LimitsSection, Field(description="How much one client, connection or request may ask for.")] = (
        LimitsSection()
    )
    watchdog: Annotated[
        WatchdogSection, Field(description="When the engine counts as hung, and what happens then.")
    ] = WatchdogSection()


class SloSection(Section):
    """What is promised. Recorded with the service; tpot_p95 also bounds the prompts that join running requests."""

    ttft_p95: Annotated[
        Seconds | None,
        Expect("a duration such as 500ms or 1.5s"),
        Field(description="Time to the first token, 95th percentile."),
    ] = None
    tpot_p95: Annotated[
        Seconds | None,
        Expect("a duration such as 40ms"),
        Field(
            description="Time per further output token, 95th percentile. Steps with running requests take only as many "
            "prompt tokens as it leaves time for, in turn none, by what the device was measured to need."
        ),
    ] = None


class Recipe(Section):
    """A service, declared."""

    version: Annotated[Literal[1], Field(description="The version of this format.")]
    name: Annotated[
        Slug, Field(description="The service's name; applying a recipe again replaces the service of its name.")
    ]
    model: Annotated[ModelSection, Field(description="Which model, and how it is read.")]
    backend: Annotated[BackendSection, Field(description="Which chip.")] = BackendSection()
    memory: Annotated[
        MemorySection, Field(description="What share of the device's memory, and how the KV pool uses it.")
    ] = MemorySection()
    scheduler: Annotated[SchedulerSection, Field(description="How requests share a step.")] = SchedulerSection()
    fusion: Annotated[FusionSection, Field(description="Which operations are folded into one kernel.")] = (
        FusionSection()
    )
    ops: Annotated[OpsSection, Field(description="Which kernels.")] = OpsSection()
    server: Annotated[ServerSection, Field(description="Where the service listens, and to whom.")] = ServerSection()
    slo: Annotated[SloSection, Field(description="What is promised, and how prompts make way for it.")] = SloSection()

    @model_validator(mode="after")
    def _has_no_conflict(self) -> Recipe:
        conflicts = find_conflicts(self)
        if conflicts:
            text = "; ".join(conflict.message for conflict in conflicts).replace("{", "{{").replace("}", "}}")
            raise PydanticCustomError("conflicts", text, {"conflicts": conflicts})
        return self


__all__ = [
    "BackendSection",
    "Dtype",
    "FusionSection",
    "LimitsSection",
    "MemorySection",
    "ModelSection",
    "OpOverride",
    "OpsSection",
    "Recipe",
    "Requires",
    "SchedulerSection",
    "SecretRef",
    "Section",
    "ServerSection",
    "SloSection",
    "TlsSection",
    "WatchdogSection",
]
