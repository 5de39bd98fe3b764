from usher_cli.up.environment import environment_of_child
from usher_cli.up.settings import UpSettings

SETTINGS = UpSettings.from_command_line(["--api-key=sk-1"])


def environment(*, with_key: bool = False, is_terminal: bool = False, **ours: str) -> dict[str, str]:
    return environment_of_child(ours, SETTINGS, with_key=with_key, is_terminal=is_terminal)


def test_what_was_meant_for_up_itself_stays_there() -> None:
    assert environment(PATH="/bin", USHER_MAX_SESSIONS="5", USHER_UDP="0.0.0.0:1", USHER_API_KEY="sk-2") == {
        "PATH": "/bin",
        "USHER_MAX_SESSIONS": "5",
    }


def test_the_key_reaches_whom_it_is_for() -> None:
    assert environment(with_key=True) == {"USHER_API_KEY": "sk-1"}


def test_lines_of_children_have_colours_where_ours_have() -> None:
    assert environment(is_terminal=True) == {"FORCE_COLOR": "1"}
    assert environment(is_terminal=True, NO_COLOR="1") == {"NO_COLOR": "1"}
    assert environment(FORCE_COLOR="0") == {"FORCE_COLOR": "1"}
    assert environment(NO_COLOR="1", FORCE_COLOR="1")["NO_COLOR"] == "1"
    assert environment() == {}
