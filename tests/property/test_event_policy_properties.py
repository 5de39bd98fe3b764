"""What two policies of events let pass together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from usher_core.event_policy import CLIENT_EVENTS, OPEN, PRIVATE_FIELDS, EventPolicy, parse_event_policy

KINDS = (*CLIENT_EVENTS, "acme.form", "acme.form.sent", "session", "response.created")
PATTERNS = ("session.*", "conversation.item.*", "conversation.*", "input_audio_buffer.*", "response.*")
ALLOWED = (*CLIENT_EVENTS, *PATTERNS, "acme.*", "acme.form")
POLICIES = st.builds(
    EventPolicy,
    allow=st.none() | st.lists(st.sampled_from(ALLOWED), max_size=6, unique=True),
    deny=st.lists(st.sampled_from((*CLIENT_EVENTS, *PATTERNS)), max_size=3, unique=True),
    private=st.lists(st.sampled_from(PRIVATE_FIELDS), max_size=3, unique=True),
)


@given(POLICIES, POLICIES)
def test_two_policies_let_pass_what_each_of_them_does(one: EventPolicy, other: EventPolicy) -> None:
    both = one.narrowed(other)
    for kind in KINDS:
        assert both.allows(kind) == (one.allows(kind) and other.allows(kind)), kind
    assert set(both.private) == {*one.private, *other.private}
    assert one.narrowed(OPEN) == one
    assert both == both.narrowed(both)
    assert parse_event_policy(both.as_json()) == both
