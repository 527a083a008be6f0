"""The Helm chart, rendered in process and held to the schemas of Kubernetes 1.25, 1.31 and 1.37 and of the custom resources."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

helm = pytest.importorskip("helm_python", reason="helm-python-sdk is not installed")
kubernetes_validate = pytest.importorskip("kubernetes_validate")

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "policyloop"
CRDS = ROOT.parent / "shared" / "data" / "crds"
VERSIONS = {"everything": ("1.25", "1.31", "1.37"), "job": ("1.25", "1.37")}  # the others hold what differs to the newest
EVERYTHING: dict[str, Any] = {
    "store": {"uri": "s3://bucket/policyloop", "secretName": "s3", "volume": {"enabled": True}},
    "keysSecretName": "keys",
    "policy": {"gpus": 1, "colours": {"green": {"enabled": True, "model": "policy@candidate", "replicas": 1}}},
    "value": {"enabled": True},
    "reward": {"enabled": True},
    "schedule": {"training": {"enabled": True}, "evaluation": {"enabled": True}},
    "monitoring": {"serviceMonitor": True, "prometheusRule": True},
    "route": {"enabled": True},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "everything": EVERYTHING,
    "job": {"training": {"kind": "job", "gpusPerNode": 4}},
    "jobset": {"training": {"kind": "jobset", "nodes": 2, "processesPerNode": 8, "gpusPerNode": 8}},
    "rayjob": {"training": {"kind": "rayjob", "nodes": 2}},
    "hpa": {"policy": {"autoscaling": {"kind": "hpa"}}},
    "keda": {"policy": {"autoscaling": {"kind": "keda"}}},
}


def rendered(values: dict[str, Any]) -> list[dict[str, Any]]:
    files = helm.Chart.load(str(CHART)).render(values, name="pl", namespace="ai")
    return [d for name, text in files.items() if name.endswith(".yaml") for d in yaml.safe_load_all(text) if d]


def pods(documents: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every pod spec wherever it is nested, with the name of what holds it."""

    def inside(tree: Any) -> Iterator[dict[str, Any]]:
        if isinstance(tree, dict):
            if "containers" in tree:
                yield tree
            for value in tree.values():
                yield from inside(value)
        elif isinstance(tree, list):
            for value in tree:
                yield from inside(value)

    for document in documents:
        for spec in inside(document):
            yield document["metadata"]["name"], spec


def of_kind(documents: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [d for d in documents if d["kind"] == kind]


@pytest.mark.parametrize("variant", VARIANTS)
def test_kubernetes_accepts_every_object(variant: str) -> None:
    builtin = [d for d in rendered(VARIANTS[variant]) if "." not in d["apiVersion"].split("/")[0] or ".k8s.io" in d["apiVersion"]]
    checked = 0
    for document, version in itertools.product(builtin, VERSIONS.get(variant, ("1.37",))):
        if document["kind"] in ("HTTPRoute", "JobSet"):
            continue
        kubernetes_validate.validate(document, version, strict=True)
        checked += 1
    assert checked >= 10


@pytest.mark.skipif(not CRDS.is_dir(), reason="the schemas of the custom resources are not beside this checkout")
@pytest.mark.parametrize(
    ("variant", "kinds"),
    [
        ("everything", ("ServiceMonitor", "PodMonitor", "PrometheusRule", "HTTPRoute")),
        ("jobset", ("JobSet",)),
        ("rayjob", ("RayJob",)),
    ],
)
def test_custom_resources_fit_their_definitions(variant: str, kinds: tuple[str, ...]) -> None:
    documents = {d["kind"]: d for d in rendered(VARIANTS[variant])}
    for kind in kinds:
        document = documents[kind]
        validator = jsonschema.Draft202012Validator(strict(definition(kind, document["apiVersion"])))
        assert not [f"{e.json_path}: {e.message}" for e in validator.iter_errors(document)]


def definition(kind: str, api_version: str) -> dict[str, Any]:
    """The schema of a custom resource; the files are large, so only the one that is named after the kind is read."""
    (path,) = (p for p in CRDS.glob("*.yaml") if kind.lower() in p.name.lower())
    crd = yaml.load(path.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    group, version = api_version.split("/")
    assert crd["spec"]["group"] == group and crd["spec"]["names"]["kind"] == kind
    (schema,) = (v["schema"]["openAPIV3Schema"] for v in crd["spec"]["versions"] if v["name"] == version)
    return schema


def strict(schema: Any) -> Any:
    """Kubernetes prunes unknown keys silently; here they are an error. `nullable` and integer-or-string are said in JSON Schema."""
    if not isinstance(schema, dict):
        return schema
    schema = (
        {**schema, "pattern": str(schema["pattern"]).replace("^(?i)", "(?i)^")}
        if isinstance(schema.get("pattern"), str)
        else schema
    )
    out = {k: ({n: strict(v) for n, v in x.items()} if k == "properties" else strict(x)) for k, x in schema.items()}
    if out.pop("x-kubernetes-int-or-string", False):
        out.pop("type", None), out.pop("anyOf", None)
    if "properties" in out and "additionalProperties" not in out and not out.get("x-kubernetes-preserve-unknown-fields"):
        out["additionalProperties"] = False
        out["properties"].setdefault("apiVersion", {}), out["properties"].setdefault("kind", {})
        out["properties"].setdefault("metadata", {})
        if out["properties"].get("metadata", {}).get("type") == "object" and len(out["properties"]["metadata"]) == 1:
            out["properties"]["metadata"] = {}
    return out


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_pod_is_unprivileged_and_bounded(variant: str) -> None:
    found = list(pods(rendered(VARIANTS[variant])))
    assert found
    for name, pod in found:
        assert pod["securityContext"]["runAsNonRoot"] and pod["automountServiceAccountToken"] is False, name
        for container in pod["containers"]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] and security["capabilities"]["drop"] == ["ALL"], name
            assert not security["allowPrivilegeEscalation"]
            assert {"requests", "limits"} <= set(container["resources"]) and "memory" in container["resources"]["limits"], name
            assert not container["image"].endswith(":latest")


def test_services_find_their_pods_and_ports() -> None:
    documents = rendered(EVERYTHING)
    deployments = {d["metadata"]["name"]: d["spec"]["template"] for d in of_kind(documents, "Deployment")}
    for service in of_kind(documents, "Service"):
        chosen = [t for t in deployments.values() if service["spec"]["selector"].items() <= t["metadata"]["labels"].items()]
        assert len(chosen) == 1, service["metadata"]["name"]
        names = {p["name"] for c in chosen[0]["spec"]["containers"] for p in c["ports"]}
        assert {p["targetPort"] for p in service["spec"]["ports"]} <= names


def test_the_ports_are_those_of_the_design() -> None:
    ports = {
        c["name"]: {p["containerPort"] for p in c["ports"]} for _, pod in pods(rendered(EVERYTHING)) for c in pod["containers"]
    }
    assert ports["policy"] == {8000, 8090} and ports["gateway"] == {8080, 8090}
    assert ports["value"] == {50051} and ports["reward"] == {8002} and ports["training"] == {9400, 29500}
    (public,) = [s for s in of_kind(rendered({}), "Service") if s["metadata"]["name"] == "pl-gateway"]
    assert public["spec"]["ports"] == [{"name": "http", "port": 8000, "targetPort": "http"}]


def test_the_gateway_reads_the_config_that_the_chart_writes() -> None:
    from policyloop.gateway import load

    (config,) = of_kind(rendered(EVERYTHING), "ConfigMap")
    gateway = load(yaml.safe_load(config["data"]["gateway.yaml"]))
    assert [b.url for b in gateway.models[0].backends] == ["http://pl-policy-blue:8000", "http://pl-policy-green:8000"]
    assert (gateway.host, gateway.store, gateway.keys) == ("0.0.0.0", "s3://bucket/policyloop", "/etc/policyloop/keys/keys.json")


def test_servers_are_started_with_flags_that_exist() -> None:
    """Every flag in the chart's commands is a row of docs/cli.md, which is held to the code."""
    documented = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    for name, pod in pods([*rendered(EVERYTHING), *rendered(VARIANTS["job"])]):
        for argument in (a for c in pod["containers"] for a in c["args"] if a.startswith("--")):
            assert f"`{argument.partition('=')[0]}`" in documented, f"{name}: {argument}"


def test_an_interrupted_job_is_tried_again_and_a_bad_recipe_is_not() -> None:
    (job,) = of_kind(rendered(VARIANTS["job"]), "Job")
    by_action = {r["action"]: r["onExitCodes"]["values"] for r in job["spec"]["podFailurePolicy"]["rules"]}
    assert by_action == {"Ignore": [75], "FailJob": [2, 3, 4]}
    assert "--resume=auto" in job["spec"]["template"]["spec"]["containers"][0]["args"]


def test_training_and_serving_do_not_see_each_other() -> None:
    policies = {d["metadata"]["name"]: d["spec"] for d in of_kind(rendered(EVERYTHING), "NetworkPolicy")}
    assert policies["pl-default"]["policyTypes"] == ["Ingress"] and "ingress" not in policies["pl-default"]

    def askers(name: str) -> set[str]:
        rules = policies[name]["ingress"]
        return {f["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for rule in rules for f in rule.get("from", [])}

    assert askers("pl-policy") == {"gateway"} and askers("pl-services") == {"training"} and askers("pl-training") == {"training"}


def test_a_digest_wins_over_a_tag() -> None:
    digest = "sha256:" + "a" * 64
    images = {
        c["image"] for _, pod in pods(rendered({"image": {"digest": digest}})) for c in pod["containers"] if c["name"] == "policy"
    }
    assert images == {f"policyloop@{digest}"}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"gateway": {"replica": 2}}, "replica"),
        ({"training": {"kind": "slurm"}}, "kind"),
        ({"image": {"digest": "latest"}}, "digest"),
        ({"gateway": {"replicas": 0}}, "replicas"),
    ],
)
def test_values_that_mean_nothing_are_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(helm.HelmError, match=said):
        rendered(values)


def test_nothing_moves_between_two_renderings() -> None:
    """What a GitOps controller compares must be a function of chart and values alone."""
    assert rendered(EVERYTHING) == rendered(EVERYTHING)


def test_no_secret_is_rendered() -> None:
    assert not of_kind(rendered(EVERYTHING), "Secret")


def test_the_chart_lints() -> None:
    assert not [
        m for m in helm.lint(str(CHART), EVERYTHING).get("messages", []) if str(m.get("severity", "")).lower() in ("error", "3")
    ]
