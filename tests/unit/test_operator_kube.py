"""What the operator makes of an answer of the API server."""

import pytest
from kubernetes.aio.client import Configuration

from tests.kube_fake import KubeFake
from usher_operator.kube import (
    ConflictError,
    ForbiddenError,
    HttpKubeApi,
    InvalidError,
    KubeError,
    UnauthorizedError,
    UnavailableError,
)

OF_WHAT = "(ns/d; apps/v1, Kind=Deployment)"
NO_LIST = (
    f"failed to create typed patch object {OF_WHAT}: .spec.template.spec.volumes: expected list, got &{{map[a:1]}}"
)
UNDECLARED = f"failed to create typed patch object {OF_WHAT}: .spec.template.spec.x: field not declared in schema"
NO_QUANTITY = f"failed to convert new object {OF_WHAT} to proper version: quantities must match the regular expression"
NO_WEBHOOK = "Internal error occurred: failed calling webhook: context deadline exceeded"
LIVE = f"failed to create typed live object {OF_WHAT}: .spec: field not declared in schema"


@pytest.fixture
async def server():
    async with KubeFake() as fake:
        fake.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "ns"}})
        yield fake


@pytest.fixture
async def api(server):
    configuration = Configuration()
    configuration.host = server.url
    api = HttpKubeApi(configuration)
    yield api
    await api.close()


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        pytest.param(400, "no JSON", InvalidError, id="400"),
        pytest.param(401, "who", UnauthorizedError, id="401"),
        pytest.param(403, "may not", ForbiddenError, id="403"),
        pytest.param(409, "changed", ConflictError, id="409"),
        pytest.param(413, "too large", InvalidError, id="413"),
        pytest.param(422, "spec.template: Invalid value", InvalidError, id="422"),
        pytest.param(429, "later", UnavailableError, id="429"),
        pytest.param(500, NO_LIST, InvalidError, id="a field of another type"),
        pytest.param(500, UNDECLARED, InvalidError, id="a field that there is not"),
        pytest.param(500, NO_QUANTITY, InvalidError, id="a text that is no quantity"),
        pytest.param(500, NO_WEBHOOK, UnavailableError, id="a webhook that does not answer"),
        pytest.param(500, LIVE, UnavailableError, id="an object there that the server can't read"),
        pytest.param(500, "", UnavailableError, id="500 without a word"),
        pytest.param(503, NO_LIST, UnavailableError, id="503 whatever it says"),
    ],
)
async def test_an_answer_tells_a_wrong_object_from_a_server_that_can_do_nothing_now(
    server: KubeFake, api: HttpKubeApi, code: int, message: str, kind: type[KubeError]
) -> None:
    server.fail(code, verb="apply", message=message)
    with pytest.raises(KubeError) as raised:
        await api.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "namespace": "ns"}})
    assert type(raised.value) is kind
    assert message in str(raised.value)
