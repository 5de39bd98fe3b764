"""What there is on a cluster, to tell what something left behind."""

from __future__ import annotations

from tests.e2e.kube import kubectl

CRDS = {
    "customresourcedefinition.apiextensions.k8s.io/relaypools.usher.fleet",
    "customresourcedefinition.apiextensions.k8s.io/transceiverpools.usher.fleet",
}
OF_EVERY_NAMESPACE = {"configmap/kube-root-ca.crt", "serviceaccount/default"}
COMES_AND_GOES = {"componentstatuses", "endpoints", "events", "namespaces", "nodes"}
"""Kinds whose objects Kubernetes makes and forgets in its own time."""


def of_cluster() -> set[str]:
    """All objects without a namespace, as `kind/name`."""
    return _objects(namespaced=False)


def of_namespace(name: str) -> set[str]:
    """All objects of a namespace."""
    return _objects(f"--namespace={name}", namespaced=True)


def _objects(*scope: str, namespaced: bool) -> set[str]:
    listed = kubectl("api-resources", "--verbs=list", f"--namespaced={str(namespaced).lower()}", "--output=name")
    kinds = {kind for kind in listed.split() if kind.split(".")[0] not in COMES_AND_GOES and "metrics" not in kind}
    return set(kubectl("get", ",".join(sorted(kinds)), *scope, "--output=name", "--show-kind").split())
