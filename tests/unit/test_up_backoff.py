from usher_cli.up.backoff import MAX_DELAY_S, Backoff


def test_the_first_restart_is_at_once_and_later_ones_wait_longer_up_to_a_bound() -> None:
    backoff = Backoff()
    delays = [backoff.next_delay(0.1) for _ in range(200)]
    assert delays[:6] == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0]
    assert set(delays[6:]) == {MAX_DELAY_S}


def test_a_program_that_ran_for_a_while_starts_at_once_again() -> None:
    backoff = Backoff()
    for _ in range(5):
        backoff.next_delay(0.1)
    assert backoff.next_delay(60.0) == 0.0
    assert backoff.next_delay(0.1) == 0.5
