"""Settings of the operator that do not fit each other are refused by name."""

import pytest

from usher_core.errors import LocalError
from usher_operator.settings import OperatorSettings


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--first-cluster-id", "9", "--last-cluster-id", "3"], "--first-cluster-id"),
        (["--lease-duration", "10", "--lease-renew-deadline", "8"], "--lease-renew-deadline"),
        (["--lease-retry", "20"], "--lease-retry"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(flags, named):
    with pytest.raises(LocalError, match=named):
        OperatorSettings.from_command_line(flags)


def test_the_identity_namespace_is_the_operators_own_unless_told(monkeypatch):
    monkeypatch.setenv("POD_NAMESPACE", "usher-system")
    settings = OperatorSettings.from_command_line(["--namespaces", "a", "--namespaces", "b"])
    assert settings.defaults.identity_namespace == "usher-system"
    assert settings.defaults.namespaces == {"a", "b"}


def test_images_are_pulled_with_the_secrets_of_a_flag_or_of_a_list_in_the_environment(monkeypatch):
    flags = ["--image-pull-secrets", "a", "--image-pull-secrets", "b"]
    assert OperatorSettings.from_command_line(flags).defaults.image_pull_secrets == ("a", "b")
    monkeypatch.setenv("USHER_IMAGE_PULL_SECRETS", "c,d")
    assert OperatorSettings.from_command_line([]).defaults.image_pull_secrets == ("c", "d")


def test_every_key_serves_the_first_clusters_of_the_range_from_the_start():
    settings = OperatorSettings.from_command_line(["--first-cluster-id", "5", "--last-cluster-id", "500"])
    assert settings.keys.clusters == tuple(range(5, 69))
