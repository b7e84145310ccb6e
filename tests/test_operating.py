"""docs/operating.md and deploy/ speak of series, flags, ports and pages that a verifier has."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cloud_verifier.__main__ import parser
from cloud_verifier.monitoring.figures import Figures
from cloud_verifier.monitoring.health import VerifierHealth
from cloud_verifier.monitoring.http_server import pages_of
from cloud_verifier.monitoring.series import CATALOGUE, GATEWAY_CATALOGUE, PREFIX, Series

ROOT = Path(__file__).resolve().parents[1]
DEPLOY = ROOT / "deploy"
PAGE = ROOT / "docs" / "operating.md"
BOARD = json.loads((DEPLOY / "grafana" / "dashboards" / "verifier.json").read_text(encoding="utf-8"))


def kind_of(series: Series) -> str:
    return series.kind.__name__.lower()


ALL = {*CATALOGUE, *GATEWAY_CATALOGUE}
QUERIED_PARTS = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
QUERIED = {f"{PREFIX}{series.name}{part}": series for series in ALL for part in QUERIED_PARTS[kind_of(series)]}
ADDED = {"instance", "job", "le"}
"""Labels that Prometheus, or a histogram, adds."""
PAGES = set(pages_of(VerifierHealth(Figures(lambda: 0.0), lambda: 0.0, 60.0)))
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
PROMETHEUS = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
ALERTS = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))
CASES = DEPLOY / "prometheus" / "alerts_test.yml"
KUBERAY = list(yaml.safe_load_all((DEPLOY / "kuberay.yaml").read_text(encoding="utf-8")))


def rules() -> Iterator[dict[str, Any]]:
    for group in ALERTS["groups"]:
        yield from group["rules"]


def queries() -> list[tuple[str, str]]:
    """Return where every query stands, and the query."""
    shown = [(panel["title"], target["expr"]) for panel in BOARD["panels"] for target in panel["targets"]]
    shown += [(each["name"], each["query"]["query"]) for each in BOARD["templating"]["list"]]
    return [*shown, *((rule["alert"], rule["expr"]) for rule in rules())]


def problems(query: str) -> list[str]:
    """Return what a query names that no verifier has: series, and labels that its series do not bear."""
    ours = re.findall(rf"\b{PREFIX}\w+", query)
    found = [f"no series {name}" for name in ours if name not in QUERIED]
    bears = {label for name in ours if name in QUERIED for label in QUERIED[name].labels} | ADDED
    asked = re.findall(r"(?:by|without|ignoring|on) \(([^)]*)\)", query)
    labels = {label.strip() for each in asked for label in each.split(",") if label.strip()}
    labels |= {
        label for each in re.findall(r"\{([^}]*)\}", query) for label in re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", each)
    }
    return (
        found
        + [f"no label {label}" for label in sorted(labels - bears)]
        + ([] if ours or "up{" in query else ["no series"])
    )


@pytest.mark.parametrize(("place", "query"), queries(), ids=lambda text: text[:40])
def test_every_query_names_series_and_labels_that_exist(place: str, query: str) -> None:
    assert not problems(query), place


def test_the_dashboard_has_the_panels_that_were_asked_for_each_at_its_place() -> None:
    titles = " ".join(panel["title"] for panel in BOARD["panels"])
    for word in ("Acceptance", "Time per token", "Violations", "Utilisation", "Links"):
        assert word in titles
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in BOARD["panels"]}
    assert len(places) == len(BOARD["panels"]) == len({panel["id"] for panel in BOARD["panels"]})
    for panel in BOARD["panels"]:
        assert all('instance=~"$instance"' in target["expr"] for target in panel["targets"]), panel["title"]


def test_grafana_is_given_the_data_source_and_the_folder_that_the_dashboard_names() -> None:
    (source,) = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yml").read_text())["datasources"]
    assert source["uid"] == BOARD["panels"][0]["datasource"]["uid"] and source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((DEPLOY / "grafana/provisioning/dashboards/verifier.yml").read_text())["providers"]
    grafana = COMPOSE["services"]["grafana"]
    mounts = dict(reversed(mount.split(":")[:2]) for mount in grafana["volumes"])
    assert mounts[provider["options"]["path"]] == "./grafana/dashboards"
    home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (DEPLOY / mounts[str(home.parent)] / home.name) == DEPLOY / "./grafana/dashboards/verifier.json"
    for service in COMPOSE["services"].values():
        for mount in service.get("volumes", []):
            place = mount.split(":")[0]
            assert not place.startswith("./") or (DEPLOY / place).exists(), mount


def test_alerts_name_what_to_do_and_stand_on_the_page() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names)) and {"AcceptanceFell", "ClassViolated", "RobotLinkSlow"} <= set(names)
    page = PAGE.read_text(encoding="utf-8")
    for rule in rules():
        assert rule["annotations"].keys() == {"summary", "action"} and rule["labels"]["severity"] in ("page", "warn")
        assert f"| `{rule['alert']}` |" in page, rule["alert"]


def test_every_alert_has_a_case_where_it_fires_and_one_where_it_does_not() -> None:
    cases = [case for test in yaml.safe_load(CASES.read_text(encoding="utf-8"))["tests"]
             for case in test["alert_rule_test"]]  # fmt: skip
    names = sorted(rule["alert"] for rule in rules())
    assert sorted(case["alertname"] for case in cases if "exp_alerts" in case) == names
    assert sorted(case["alertname"] for case in cases if "exp_alerts" not in case) == names


def test_promtool_takes_the_rules_and_the_configuration() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    for words in ("check rules alerts.yml", "check config prometheus.yml", f"test rules {CASES.name}"):
        done = subprocess.run(
            [promtool, *words.split()], cwd=DEPLOY / "prometheus", capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr


def flags(words: list[str]) -> dict[str, Any]:
    return vars(parser().parse_args(words))


def test_the_compose_files_verifier_starts_by_our_flags_and_is_watched_at_its_port() -> None:
    verifier = COMPOSE["services"]["verifier"]
    options = flags(verifier["command"])
    assert (options["http_bind"], options["log_format"]) == ("0.0.0.0", "json")
    assert options["bind"] == "tcp://0.0.0.0:5555"
    assert verifier["ports"] == ["5555:5555", f"127.0.0.1:{options['http']}:{options['http']}"]
    (job,) = PROMETHEUS["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"verifier:{options['http']}"]}]
    assert any(f'job="{job["job_name"]}"' in rule["expr"] for rule in rules())
    assert f":{options['http']}/health" in verifier["healthcheck"]["test"][-1]
    exposed = re.search(r"^EXPOSE (.+)$", (DEPLOY / "Dockerfile.verifier").read_text(encoding="utf-8"), re.MULTILINE)
    assert exposed is not None and set(exposed[1].split()) == {"5555", str(options["http"])}
    # figures have no password: only the machine itself reaches them, Prometheus and Grafana
    for name in ("prometheus", "grafana"):
        assert all(port.startswith("127.0.0.1:") for port in COMPOSE["services"][name]["ports"])


def test_whoever_is_given_a_gpu_computes_on_it() -> None:
    verifier = COMPOSE["services"]["verifier"]
    assert verifier["deploy"]["resources"]["reservations"]["devices"] and flags(verifier["command"])["device"] == "cuda"
    assert "nvidia.com/gpu" in (DEPLOY / "kuberay.yaml").read_text(encoding="utf-8")
    (gateway,) = (each for each in KUBERAY if each["kind"] == "Deployment")
    assert flags(gateway["spec"]["template"]["spec"]["containers"][0]["args"])["device"] == "cuda"
    command = re.search(r"^CMD (.+)$", (DEPLOY / "Dockerfile.verifier").read_text(encoding="utf-8"), re.MULTILINE)
    assert command is not None and flags(json.loads(command[1]))["device"] == "cuda"


def test_the_kubernetes_manifest_probes_pages_that_exist_at_the_ports_that_its_flags_open() -> None:
    cluster, gateway, service = (next(each for each in KUBERAY if each["kind"] == kind)
                              for kind in ("RayCluster", "Deployment", "Service"))  # fmt: skip
    (container,) = gateway["spec"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    words = dict(word.removeprefix("--").split("=", 1) for word in container["args"][1:])
    assert (ports["http"], ports["robots"]) == (int(words["http"]), int(words["bind"].rpartition(":")[2]))
    for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
        probe = container[kind]["httpGet"]
        assert probe["path"] in PAGES and probe["port"] in ports
    assert container["livenessProbe"]["httpGet"]["path"] == "/health"
    assert container["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert service["spec"]["ports"][0]["targetPort"] in ports
    assert service["spec"]["selector"] == gateway["spec"]["selector"]["matchLabels"]
    (workers,) = cluster["spec"]["workerGroupSpecs"]
    pods = [cluster["spec"]["headGroupSpec"]["template"], workers["template"], gateway["spec"]["template"]]
    assert {each["image"] for pod in pods for each in pod["spec"]["containers"]} == {container["image"]}
    client = next(each for each in pods[0]["spec"]["containers"][0]["ports"] if each["name"] == "client")
    assert words["address"] == f"ray://{cluster['metadata']['name']}-head-svc:{client['containerPort']}"
    assert f"{container['image']} " in PAGE.read_text(encoding="utf-8")
    for pod in pods:
        # Kubernetes makes what a volume holds readable by that group, and `serve` refuses such keys
        assert "fsGroup" not in pod["spec"].get("securityContext", {})
        volumes = {volume["name"] for volume in pod["spec"].get("volumes", [])}
        mounts = {mount["name"] for each in pod["spec"]["containers"] for mount in each.get("volumeMounts", [])}
        assert mounts <= volumes
    assert flags(container["args"])["command"] == "cluster"


def test_the_page_lists_every_series_with_its_kind_and_labels() -> None:
    rows = re.findall(r"^\| `([a-z0-9_]+)` \| (\w+) \| (.*?) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    listed = {name: (kind, tuple(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    assert listed == {series.name: (kind_of(series), series.labels) for series in ALL}
    assert all(page in PAGE.read_text(encoding="utf-8") for page in PAGES)
