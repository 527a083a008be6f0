"""The gateway: one address in front of many backends and versions, and the release controller that moves traffic between them. No torch.

In: HTTP as OpenAI and `/predict` speak it, and each model's log in the store. Out: the same requests at one healthy backend of the arm
(version) the session belongs to; journal lines, figures by arm, and events in that log. This file holds the settings and the seams.

Example:
    gateway:
      store: ./store
      models:
        - {name: math, backends: [{url: "http://127.0.0.1:8001", version: 1}, {url: "http://127.0.0.1:8002", version: 2}]}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Literal

from policyloop.config import build, load_yaml
from policyloop.errors import BadInput
from policyloop.journal import JournalSettings
from policyloop.types import settings

Mode = Literal["canary", "blue_green"]
Strategy = Literal["double", "adapter", "replace"]
Balance = Literal["round_robin", "least_connections", "power_of_two"]


@settings
class BackendSettings:
    """One OpenAI-compatible server. The same address may stand twice with two `model` names: two adapters on one engine."""

    url: str  # its address, without /v1
    version: int | None = None  # which version it serves; null: the one it reports in x-policyloop-version
    model: str | None = None  # the name it knows the model by; null: the name the client used
    key_env: str | None = None  # the environment variable that holds its API key


@settings
class HealthSettings:
    """Active checks of every backend, and what its answers to real traffic do to it."""

    path: str = "/health/ready"  # 404 there counts as up: OpenAI-compatible servers differ, /v1/models is asked instead
    interval_s: float = 1.0  # between two checks
    timeout_s: float = 2.0  # a check that takes longer is a bad one
    up_after: int = 1  # good checks in a row
    down_after: int = 2  # bad checks in a row
    breaker_failures: int = 5  # failed requests in a row that open the circuit
    breaker_open_s: float = 5.0  # then one request is let through as a trial
    eject_share: float = 0.5  # failed share of the last `eject_window` requests that ejects a backend
    eject_window: int = 20  # how many requests it looks at
    eject_s: float = 10.0  # how long it stays out
    max_ejected: float = 0.5  # share of an arm's backends that may be ejected at once


@settings
class SignalSettings:
    """One quality signal of a release; higher is better in all of them (a share of good outcomes)."""

    margin: float = 0.05  # the candidate may be this much worse
    needed: bool = True  # must pass before the next step; false: it can only veto
    limit: float | None = None  # `slow`: seconds, `long`: tokens; beyond it an answer counts as bad


@settings
class SignalsSettings:
    """What the arms are compared by. null switches a signal off; one without data is inconclusive, never passed."""

    errors: SignalSettings | None = SignalSettings(margin=0.02)  # answers without an error
    slow: SignalSettings | None = SignalSettings(margin=0.1, limit=10.0)  # answers within `limit` seconds
    long: SignalSettings | None = SignalSettings(margin=0.1, limit=1024.0)  # answers within `limit` tokens
    feedback: SignalSettings | None = SignalSettings(margin=0.05, needed=False)  # thumbs, scores, outcomes of whoever asked
    verifier: SignalSettings | None = SignalSettings(
        margin=0.05, needed=False
    )  # requests whose metadata.target says what is right


@settings
class ApprovalSettings:
    """Who must agree before the last step: `n` different admin keys with this role."""

    role: str = "approve"  # a scope of `policyloop keys`
    n: int = 1  # how many
    within_s: float = 86400.0  # then the release ends, without blame


@settings
class WebhookSettings:
    """A signed POST for every event of the log: `X-Policyloop-Signature: sha256=<HMAC of the body>`."""

    url: str  # where to
    secret_env: str = "POLICYLOOP_WEBHOOK_SECRET"  # the environment variable with the secret
    timeout_s: float = 5.0  # per try, of three


@settings
class MemorySettings:
    """What one machine of backends can hold; null = not known, then nothing is refused for its size."""

    capacity_bytes: int | None = None  # of one machine
    kv_bytes: int = 0  # room each loaded model needs for its cache


@settings
class ReleaseSettings:
    """How a candidate becomes the stable version, and what sends it back."""

    mode: Mode = "canary"  # canary: step by step; blue_green: all at once after warming
    strategy: Strategy = "double"  # double: both loaded; adapter: two LoRA versions on one base; replace: one after the other
    auto: bool = True  # begin when the log's `candidate` alias appears
    steps: tuple[float, ...] = (0.05, 0.25, 0.5)  # the candidate's share of sessions, step by step
    shadow_share: float = 0.0  # of requests that are also sent to the candidate, answers thrown away, before the canary
    holdback: float = 0.05  # share that stays on the old version while the new one is watched
    warming_s: float = 600.0  # to become ready and answer the warm-up requests
    step_s: float = 3600.0  # per step; inconclusive after it rolls back
    step_min_s: float = 10.0  # no step is shorter
    watch_s: float = 3600.0  # after promotion
    alpha: float = 0.05  # chance that a candidate as good as the stable one is rolled back; and that one beyond a margin passes
    unit_outcomes: int = 4  # a session's first outcomes, averaged, are one unit; it counts once
    unit_idle_s: float = 30.0  # a session quiet for so long is complete
    warmup_prompts: tuple[str, ...] = ("Hello",)  # each backend of the candidate answers these before it counts as ready
    max_failures: int = 5  # failed updates in a row that freeze updates
    signals: SignalsSettings = field(default_factory=SignalsSettings)  # what the arms are compared by
    verifier: str = "policyloop.rewards.math:grade"  # (answer, metadata.target) -> right?
    approval: ApprovalSettings | None = None  # null: nobody is asked
    memory: MemorySettings = field(default_factory=MemorySettings)  # for the arithmetic of strategy


@settings
class QuotaSettings:
    """Limits per API key and model; null = none. Per replica, unless `gateway.limits` names a shared storage."""

    requests_per_minute: int | None = None  # answered 429 beyond it
    tokens_per_minute: int | None = None  # generated ones


@settings
class RouteSettings:
    """One model name: its backends, balancing, limits and release rules."""

    name: str  # what clients ask for, and the name in the store
    backends: tuple[BackendSettings, ...]  # its servers, of any version
    balance: Balance = "power_of_two"  # among the healthy backends of a version
    sticky: bool = True  # a session stays with one backend of its arm while that is healthy
    retries: int = 2  # other backends that are tried before the client has got a byte
    timeout_s: float = 600.0  # for the first byte of an answer, and between two
    max_running: int = 512  # requests at once; more are answered 429
    health: HealthSettings = field(default_factory=HealthSettings)  # checks, circuit, ejection
    quota: QuotaSettings = field(default_factory=QuotaSettings)  # limits of each key here
    release: ReleaseSettings = field(default_factory=ReleaseSettings)  # see release.md


@settings
class GatewaySettings:
    """`policyloop gateway CONFIG`."""

    models: tuple[RouteSettings, ...]  # the names it answers for
    store: str = "store"  # where the logs are: a folder or s3://...
    host: str = "127.0.0.1"  # 0.0.0.0 opens it to other machines
    port: int = 8080  # data
    admin_host: str = "127.0.0.1"  # loopback
    admin_port: int = 8090  # admin
    poll_s: float = 0.2  # how often each model's log is looked at: what bounds the way back
    drain_s: float = 30.0  # running answers get this long after SIGTERM
    keys: str | None = None  # file of API keys; null: no key is asked
    limits: str = "memory://"  # storage of the limits: memory:// is per replica, redis://... is shared
    journal: JournalSettings | None = None  # null: nothing is written down and feedback is refused
    webhooks: tuple[WebhookSettings, ...] = ()  # told of every event this gateway writes


def load(source: Path | Mapping[str, Any]) -> GatewaySettings:
    """The `gateway` table of a YAML file. Errors: BadInput with key, value and what is allowed."""
    tree = load_yaml(source) if isinstance(source, Path) else source
    if "gateway" not in tree:
        raise BadInput("the config has no gateway", "gateway: {models: [...]}", "gateway.models")
    made = build(GatewaySettings, tree["gateway"], "gateway")
    check(made)
    return made


def check(gateway: GatewaySettings) -> None:
    """Errors: BadInput for what cannot work."""
    names = [route.name for route in gateway.models]
    _need(len(names) > 0, "gateway.models is empty", "at least one model", "gateway.models")
    _need(len(set(names)) == len(names), f"gateway.models has {', '.join(names)}", "each name once", "gateway.models[].name")
    for at, route in enumerate(gateway.models):
        _check_route(route, f"gateway.models[{at}]")
    for port, name in ((gateway.port, "port"), (gateway.admin_port, "admin_port")):
        _need(0 <= port <= 65535, f"gateway.{name} = {port}", "0 (any) to 65535", f"gateway.{name}")
    _need(gateway.poll_s > 0, f"gateway.poll_s = {gateway.poll_s}", "above 0", "gateway.poll_s")


def _check_route(route: RouteSettings, where: str) -> None:
    r, h = route.release, route.health
    _need(len(route.backends) > 0, f"{where}.backends is empty", "at least one {url: ...}", f"{where}.backends")
    for backend in route.backends:
        fine = re.match(r"https?://[^/]+", backend.url) is not None
        _need(fine, f"{where}.backends: {backend.url}", "http://host:port or https://...", f"{where}.backends[].url")
    rising = all(0 < s < 1 for s in r.steps) and list(r.steps) == sorted(set(r.steps))
    _need(
        rising and len(r.steps) > 0,
        f"{where}.release.steps = {list(r.steps)}",
        "rising shares between 0 and 1",
        f"{where}.release.steps",
    )
    for name in ("shadow_share", "holdback"):
        value = getattr(r, name)
        _need(0 <= value < 1, f"{where}.release.{name} = {value}", "0 to below 1", f"{where}.release.{name}")
    _need(0 < r.alpha < 0.5, f"{where}.release.alpha = {r.alpha}", "between 0 and 0.5", f"{where}.release.alpha")
    for name in ("unit_outcomes", "max_failures"):
        _need(getattr(r, name) >= 1, f"{where}.release.{name} = {getattr(r, name)}", "1 or more", f"{where}.release.{name}")
    for name in ("interval_s", "timeout_s"):
        _need(getattr(h, name) > 0, f"{where}.health.{name} = {getattr(h, name)}", "above 0", f"{where}.health.{name}")
    for name, signal in signals(r).items():
        _need(
            0 <= signal.margin < 1, f"{name}.margin = {signal.margin}", "0 to below 1", f"{where}.release.signals.{name}.margin"
        )


def signals(release: ReleaseSettings) -> dict[str, SignalSettings]:
    """The signals that are on, by name."""
    rows = {name: getattr(release.signals, name) for name in ("errors", "slow", "long", "feedback", "verifier")}
    return {name: row for name, row in rows.items() if row is not None}


def _need(ok: bool, given: str, allowed: str, where: str) -> None:
    if not ok:
        raise BadInput(given, allowed, where)
