"""One install of usher on a cluster, as a user makes it: the chart, then the pools of examples/, but smaller."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import os
import random
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from tests.e2e.calls import LONGEST_S, LiveCalls, Outcome
from tests.e2e.images import Images
from tests.e2e.kube import Json, Namespace, kubectl, run, wait_for
from tests.pages import ROOT

CHART = str(ROOT / "charts" / "usher")
RELEASE = "usher"
RELAYS = "rpool/edge"
TRANSCEIVERS = "tpool/voice"
RELAY_PODS = "app.kubernetes.io/component=relay,usher.fleet/pool=edge"
TRANSCEIVER_PODS = "app.kubernetes.io/component=transceiver,usher.fleet/pool=voice"
SIGNALING_PODS = "app.kubernetes.io/instance=usher,app.kubernetes.io/component=signaling"
OPERATOR_PODS = "app.kubernetes.io/instance=usher,app.kubernetes.io/component=operator"
RELAY_SERVICE = "edge-relay"
API_KEY = "sk_of_the_end_to_end_tests"
READY_LIMIT_S = 180

# Everything shares few cores: small requests, so that all pods find room, and drains that end within a test.
SMALL_RELAYS: Json = {
    "replicas": 2,
    "resources": {"requests": {"cpu": "60m", "memory": "96Mi"}},
    "drain": {"gracePeriod": "45s"},
}
SMALL_TRANSCEIVERS: Json = {
    "replicas": 2,
    "resources": {"requests": {"cpu": "80m", "memory": "128Mi"}},
    "drain": {"gracePeriod": "3m"},
}


def values(namespace: str, images: Images) -> Json:
    """Values of the chart: its defaults, but for small requests and one namespace."""
    return {
        "global": {"imageRegistry": images.registry},
        # The operator of another install must not look after our pools, nor ours after others'.
        "operator": {
            "image": {"tag": images.tag},
            "watchNamespaces": [namespace],
            "resources": {"requests": {"cpu": "20m", "memory": "128Mi"}},
        },
        "signaling": {
            "image": {"tag": images.tag},
            "service": {"type": "NodePort"},
            "settings": {"backends": ["echo", "parrot"], "linger": 5, "grace": 10},
            "terminationGracePeriodSeconds": 20,
            "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}},
        },
        "relay": {"image": {"tag": images.tag}},
        "transceiver": {"image": {"tag": images.tag}},
    }


@dataclass
class Fleet:
    """An install in a namespace of its own, whose pods have to be `restricted`."""

    namespace: Namespace
    images: Images
    figures: dict[str, float] = field(default_factory=dict)
    """Seconds that steps of the install took."""
    url: str = ""

    # ---- install and its end

    def install(self) -> None:
        """`helm install`, `kubectl apply -f examples/`, wait until both pools are ready."""
        began = time.monotonic()
        self.make_namespace()
        # Other tests may have applied the CRDs before.
        self.helm("install", RELEASE, CHART, "--take-ownership", given=values(self.namespace.name, self.images))
        self.figures["helm install"] = time.monotonic() - began
        self.make_pools()
        self.until_ready()
        self.figures["both pools ready"] = time.monotonic() - began
        self.until_calls_can_be_placed()
        self.url = self.signaling_url()
        self.figures["calls can be placed"] = time.monotonic() - began

    def make_namespace(self) -> None:
        """Make a namespace, and in it the Secret of API keys that users make."""
        name = self.namespace.name
        kubectl("create", "namespace", name)
        self.enforce("restricted")
        keys = {"keys": f"e2e:{API_KEY}", "test-key": API_KEY}
        self.namespace.apply(
            {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "usher-api-keys"}, "stringData": keys}
        )

    def enforce(self, level: str) -> None:
        """Set the level of Pod Security of the namespace."""
        kubectl("label", "--overwrite", "namespace", self.namespace.name, f"pod-security.kubernetes.io/enforce={level}")

    def make_pools(self, *, small: bool = False) -> None:
        """`kubectl apply` the pools of examples/, at once as `shrink` makes them if wanted, and give an address."""
        for pool, spec in zip(self._example_pools(), (SMALL_RELAYS, SMALL_TRANSCEIVERS), strict=True):
            pool["spec"] |= spec if small else {"resources": spec["resources"]}
            self.namespace.apply(pool)
        self.give_address()

    def adopt(self) -> None:
        """Use an install that is there already."""
        self.until_calls_can_be_placed()
        self.url = self.signaling_url()

    def helm(self, *arguments: str, given: Json | None = None, limit: float = 300) -> str:
        flags = ["--values=-"] if given is not None else []
        return run(
            "helm", "--namespace", self.namespace.name, *arguments, *flags,
            given=json.dumps(given or {}), limit=limit,
        )  # fmt: skip

    def shrink(self) -> None:
        """Make the pools of the examples small, and wait until they are."""
        self.namespace.patch(RELAYS, {"spec": SMALL_RELAYS})
        self.namespace.patch(TRANSCEIVERS, {"spec": SMALL_TRANSCEIVERS})
        self.until_settled()

    def remove(self) -> None:
        """Take the install away, with force where its end is not what is tested."""
        self.namespace.kubectl("delete", TRANSCEIVERS, RELAYS, "--wait=false", "--ignore-not-found")
        self.helm("uninstall", RELEASE, "--no-hooks", "--ignore-not-found")
        for kind in ("tpool", "rpool"):
            for pool in self.namespace.list(kind):
                self.namespace.patch(f"{kind}/{pool['metadata']['name']}", {"metadata": {"finalizers": None}})
        self.namespace.kubectl("delete", "pods", "--all", "--force", "--grace-period=0", "--wait=false")
        kubectl("delete", "namespace", self.namespace.name, "--wait=false")

    def _example_pools(self) -> list[Json]:
        pools: list[Json] = [
            yaml.safe_load((ROOT / "examples" / f"{name}.yaml").read_text())
            for name in ("relaypool", "transceiverpool")
        ]
        if not os.environ.get("USHER_E2E_ADDRESSES"):
            # No load balancer and none to play its part: clients reach the nodes.
            pools[0]["spec"]["exposure"] = {"type": "NodePort", "externalTrafficPolicy": "Cluster"}
        return pools

    def give_address(self) -> None:
        """Play the load balancer, with an address of the network `USHER_E2E_ADDRESSES` that leads to the nodes."""
        if network := os.environ.get("USHER_E2E_ADDRESSES"):
            wait_for("the relays' Service", lambda: RELAY_SERVICE in self.namespace.kubectl("get", "services"))
            services = json.loads(kubectl("get", "services", "--all-namespaces", "--output=json"))["items"]
            balancers = (service["status"].get("loadBalancer") or {} for service in services)
            taken = {each.get("ip") for balancer in balancers for each in balancer.get("ingress") or ()}
            address = random.choice([ip for ip in ipaddress.ip_network(network).hosts() if str(ip) not in taken])
            status = {"status": {"loadBalancer": {"ingress": [{"ip": str(address)}]}}}
            self.namespace.patch(f"service/{RELAY_SERVICE}", status, "--subresource=status")

    def signaling_url(self) -> str:
        """Where callers reach signaling."""
        node = json.loads(kubectl("get", "nodes", "--output=json"))["items"][0]
        host = next(each["address"] for each in node["status"]["addresses"] if each["type"] == "InternalIP")
        port = self.namespace.get("service/usher-signaling")["spec"]["ports"][0]["nodePort"]
        return f"http://{host}:{port}"

    # ---- waiting

    def until_ready(self, limit: float = READY_LIMIT_S) -> None:
        """Wait as a user does: both pools Ready for the spec that they have now."""
        for pool in (RELAYS, TRANSCEIVERS):
            wait_for(f"{pool} seen by the operator", lambda pool=pool: self._is_observed(pool), limit)  # type: ignore[misc]
            self.namespace.kubectl("wait", "--for=condition=Ready", f"--timeout={limit:.0f}s", pool, limit=limit + 10)

    def _is_observed(self, pool: str) -> bool:
        found = self.namespace.get(pool)
        return bool(found["status"].get("observedGeneration") == found["metadata"]["generation"])

    def until_settled(self, limit: float = READY_LIMIT_S) -> None:
        """Wait until both pools are ready, signaling can place calls, and no pod of theirs or of the operator goes."""
        self.until_ready(limit)
        wait_for("no operator more or less than wanted", self._has_its_operators, limit)
        wait_for("no pod more or less than wanted", self._is_settled, limit)
        self.until_ready(limit)
        self.until_calls_can_be_placed()

    def _has_its_operators(self) -> bool:
        found = self.pods(OPERATOR_PODS)
        wanted = self.namespace.get("deployment/usher-operator")["spec"]["replicas"]
        return len(found) == wanted and all(map(is_ready, found))

    def _is_settled(self) -> bool:
        for pool, pods, program in ((RELAYS, RELAY_PODS, "relay"), (TRANSCEIVERS, TRANSCEIVER_PODS, "transceiver")):
            spec = self.namespace.get(pool)["spec"]
            image = spec.get("image") or self.images.name(program)
            found = self.namespace.list("pods", pods)
            if len(found) != spec["replicas"] or not all(is_ready(pod) and image_of(pod) == image for pod in found):
                return False
        return True

    def until_calls_can_be_placed(self) -> None:
        """Wait until all of signaling says so: it is ready, too, while nobody takes calls."""
        deployment = "deployment/usher-signaling"
        self.namespace.kubectl("rollout", "status", deployment, "--timeout=120s", limit=130)
        wait_for("signaling that can place calls", self._all_can_place, READY_LIMIT_S)

    def _all_can_place(self) -> bool:
        staying = [pod for pod in self.pods(SIGNALING_PODS) if is_ready(pod)]
        return bool(staying) and all(json.loads(self.page(pod, 8080, "readyz"))["can_place"] for pod in staying)

    # ---- what is there

    def pods(self, selector: str) -> list[Json]:
        """Pods by name, those on their way out among them."""
        return sorted(self.namespace.list("pods", selector), key=lambda pod: str(pod["metadata"]["name"]))

    def metrics(self, pod: Json, port: int) -> str:
        """The metrics of a pod."""
        return self.page(pod, port, "metrics")

    def page(self, pod: Json, port: int, name: str) -> str:
        """A page of a pod, through the API server."""
        proxy = f"/api/v1/namespaces/{self.namespace.name}/pods/{pod['metadata']['name']}:{port}/proxy"
        return kubectl("get", "--raw", f"{proxy}/{name}")

    def lease_holder(self) -> str:
        """Who holds the operators' Lease: the name of its pod, and what tells one process of it from the next."""
        return self.namespace.get("lease/usher-operator")["spec"].get("holderIdentity") or ""

    def leader(self) -> str | None:
        """Name of the operator pod that holds the Lease; None: nobody does."""
        name = self.lease_holder().partition("_")[0]
        return name if name in {pod["metadata"]["name"] for pod in self.pods(OPERATOR_PODS)} else None

    # ---- faults

    def kill(self, pod: Json) -> None:
        """End the container of a pod without a word to it, as the loss of power does."""
        command = os.environ.get("USHER_E2E_ON_NODE")
        assert command, "set USHER_E2E_ON_NODE to a command that runs another one on a node (conftest.py)"
        container = pod["status"]["containerStatuses"][0]["containerID"].partition("://")[2]
        kill = ["ctr", "--namespace", "k8s.io", "task", "kill", "--signal", "SIGKILL", container]
        run(*shlex.split(command), pod["spec"]["nodeName"], *kill)

    def bring_files(self, selector: str) -> None:
        """Have kubelets bring changed Secrets to pods now, as they do when a pod changes; else within 60 to 90 s."""
        self.namespace.kubectl("annotate", "pods", f"--selector={selector}", f"e2e/at={time.time()}", "--overwrite")

    def scale_operator(self, replicas: int) -> None:
        """Change the number of operators, and wait until as many pods are there."""
        self.namespace.kubectl("scale", "deployment/usher-operator", f"--replicas={replicas}")
        wait_for(f"{replicas} operators", lambda: len(self.pods(OPERATOR_PODS)) == replicas)

    # ---- calls

    def call(self, seconds: float = 3, count: int = 1) -> Outcome:
        """Place calls and wait for their end."""
        with self.calls(count, seconds) as calls:
            return calls.until_ended()

    def calls(self, count: int, seconds: float = LONGEST_S, *, light: bool = False) -> LiveCalls:
        """Calls in the background, see LiveCalls."""
        return LiveCalls(self.url, API_KEY, count, seconds, light=light)

    # ---- what a failed test leaves for its reader

    def collect(self, folder: Path) -> None:
        """Write what there is to see into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        looks = {
            "all": "get all,secrets,leases,pdb,usher --output=wide --show-labels",
            "pools": "get usher --output=yaml",
            "pods": "get pods --output=yaml",
            "describe": "describe pods",
            "events": "get events --sort-by=.lastTimestamp",
        }
        for name, arguments in looks.items():
            self._keep(folder / f"{name}.txt", arguments.split())
        for pod in self.namespace.list("pods"):
            if "containerStatuses" not in pod["status"]:
                continue  # not started: it has said nothing, and there may be thousands
            name = pod["metadata"]["name"]
            self._keep(folder / f"log-{name}.txt", ["logs", name, "--timestamps", "--tail=3000"])
            self._keep(folder / f"log-{name}-before.txt", ["logs", name, "--previous", "--timestamps", "--tail=1000"])

    def _keep(self, path: Path, arguments: list[str]) -> None:
        command = ["kubectl", "--namespace", self.namespace.name, *arguments]
        # Of thousands of pods some looks take too long: then they are missing, and the rest of the report stays.
        with contextlib.suppress(subprocess.TimeoutExpired):
            ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            if ended.stdout:
                path.write_text(ended.stdout)


def is_ready(pod: Json) -> bool:
    """Whether a pod is ready and stays."""
    conditions = {each["type"]: each["status"] for each in pod["status"].get("conditions", ())}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]


def image_of(pod: Json) -> str:
    """The image that a pod was told to run."""
    return str(pod["spec"]["containers"][0]["image"])


def pod_id(pod: Json) -> int | None:
    """The pod id that the operator gave, if any."""
    given = pod["metadata"]["labels"].get("usher.fleet/pod-id")
    return int(given) if given else None


@contextlib.contextmanager
def stopwatch(figures: dict[str, float], name: str) -> Iterator[None]:
    """Measure seconds."""
    began = time.monotonic()
    yield
    figures[name] = round(time.monotonic() - began, 2)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
