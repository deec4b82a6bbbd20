"""The Helm chart: what it renders is valid, and says what Accordion needs."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.deploy.conftest import DEPLOY, Render

CHART = DEPLOY / "helm" / "accordion"
STORE = {"ACCORDION_STORE": "valkey://valkey:6379/0"}
EVERYTHING: dict[str, Any] = {
    "secrets": {**STORE, "TEAM_KEY": "a-long-enough-key", "ADMIN_KEY": "another-long-enough-key"},
    "config": {
        "server": {"shutdown_seconds": 300},
        "proxy_keys": [{"id": "team", "key": "${TEAM_KEY}"}],
        "admin_key": "${ADMIN_KEY}",
    },
    "env": [{"name": "ACCORDION_LOG", "value": "json"}],
    "image": {"repository": "registry.example.com/accordion", "tag": "1"},
    "imagePullSecrets": [{"name": "registry"}],
    "persistence": {"storageClass": "fast", "size": "5Gi"},
    "ingress": {"enabled": True, "className": "nginx", "tlsSecret": "tls"},
    "serviceMonitor": {"enabled": True, "keyName": "ADMIN_KEY"},
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "agents", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule"}
    ],
    "podAnnotations": {"example.com/team": "agents"},
}
SETS = {
    "existing": {"existingSecret": "accordion"},
    "values": {"secrets": STORE},
    "all": EVERYTHING,
    "one": {"replicas": 1},
}


def only(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """Returns the object of a kind; there must be one."""
    (found,) = (each for each in objects if each["kind"] == kind)
    return found


def pod(objects: list[dict[str, Any]]) -> dict[str, Any]:
    spec: dict[str, Any] = only(objects, "StatefulSet")["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("values", SETS.values(), ids=SETS.keys())
@pytest.mark.parametrize("version", ["1.28", "1.34"])
def test_each_object_is_valid(render: Render, values: dict[str, Any], version: str):
    for each in render(**values):
        if each["kind"] != "ServiceMonitor":  # of the Prometheus operator, whose schema is not Kubernetes' own
            kubernetes_validate.validate(each, version, strict=True)


@pytest.mark.parametrize("values", SETS.values(), ids=SETS.keys())
def test_its_schema_accepts_its_own_values_and_these(values: dict[str, Any]):
    schema = json.loads((CHART / "values.schema.json").read_text())
    own = yaml.safe_load((CHART / "values.yaml").read_text())
    jsonschema.validate({**own, **values}, schema)
    assert own.keys() | {"global"} == schema["properties"].keys()


@pytest.mark.parametrize("values", [{"replica": 2}, {"config": "text"}, {"ingress": {"hosts": []}}, {"replicas": "2"}])
def test_its_schema_refuses_what_the_templates_do_not_read(values: dict[str, Any]):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(values, json.loads((CHART / "values.schema.json").read_text()))


def test_the_values_in_the_documents_are_valid(render: Render):
    text = (DEPLOY.parent / "docs" / "deployment.md").read_text()
    values = yaml.safe_load(text.partition('```yaml title="values.yaml"')[2].partition("```")[0])
    jsonschema.validate(values, json.loads((CHART / "values.schema.json").read_text()))
    assert pod(render(**values))["containers"][0]["image"] == "registry.example.com/accordion:0.2.0"
    # A variable that is not set is an error at the start.
    assert set(re.findall(r"\$\{(\w+)\}", str(values["config"]))) <= set(re.findall(r"--from-literal (\w+)=", text))


def test_several_replicas_need_a_shared_store(render: Render):
    with pytest.raises(ValueError, match="needs a shared store"):
        render()
    with pytest.raises(ValueError, match="needs a shared store"):
        render(secrets={"OTHER": "a value"})


def test_one_replica_has_no_disruption_budget_since_it_could_never_be_moved(render: Render):
    assert "PodDisruptionBudget" not in {each["kind"] for each in render(replicas=1)}
    assert only(render(existingSecret="s"), "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


def test_the_probes_ask_the_paths_that_are_meant_for_them(render: Render):
    container = pod(render(existingSecret="s"))["containers"][0]
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert container["startupProbe"]["httpGet"]["path"] == "/healthz"


def test_a_pod_has_the_time_to_end_its_responses(render: Render):
    assert pod(render(existingSecret="s"))["terminationGracePeriodSeconds"] == 40
    assert pod(render(**EVERYTHING))["terminationGracePeriodSeconds"] == 310


def test_each_pod_keeps_its_spool(render: Render):
    objects = render(**EVERYTHING)
    (claim,) = only(objects, "StatefulSet")["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["storageClassName"] == "fast"
    mounts = {each["mountPath"]: each["name"] for each in pod(objects)["containers"][0]["volumeMounts"]}
    assert mounts["/data"] == claim["metadata"]["name"]
    assert {"name": "HOME", "value": "/data"} in pod(objects)["containers"][0]["env"], "the spool is below it"


def test_services_select_the_pods_and_are_scraped_once(render: Render):
    objects = render(**EVERYTHING)
    labels = only(objects, "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    services = [each for each in objects if each["kind"] == "Service"]
    assert all(each["spec"]["selector"].items() <= labels.items() for each in services)
    selector = only(objects, "ServiceMonitor")["spec"]["selector"]["matchLabels"]
    assert sum(selector.items() <= each["metadata"]["labels"].items() for each in services) == 1
    assert only(objects, "StatefulSet")["spec"]["serviceName"] in {each["metadata"]["name"] for each in services}


def test_a_change_of_the_settings_restarts_the_pods(render: Render):
    def annotations(**values: Any) -> dict[str, str]:
        found: dict[str, str] = only(render(**values), "StatefulSet")["spec"]["template"]["metadata"]["annotations"]
        return found

    first = annotations(secrets=STORE)
    assert annotations(secrets=STORE, config={"server": {"workers": 2}}) != first
    assert annotations(secrets={**STORE, "MORE": "1"}) != first
    assert annotations(secrets=STORE) == first


@pytest.mark.parametrize("config", [{}, EVERYTHING["config"]], ids=["none", "some"])
def test_accordion_accepts_the_configuration_that_it_writes(render: Render, config: dict[str, Any], tmp_path: Path):
    text = only(render(existingSecret="s", config=config), "ConfigMap")["data"]["config.yaml"]
    path = tmp_path / "config.yaml"
    path.write_text(text)
    subprocess.run(
        [sys.executable, "-m", "accordion", "check", str(path)],
        env={"TEAM_KEY": "a-long-enough-key", "ADMIN_KEY": "another-long-enough-key", "HOME": str(tmp_path)},
        check=True,
        timeout=60,
    )


def test_the_chart_has_the_version_of_the_package():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = (DEPLOY.parent / "pyproject.toml").read_text()
    assert f'version = "{chart["appVersion"]}"' in project
