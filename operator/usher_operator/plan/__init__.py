"""What to do about a pool: pure functions of what was seen and of `now`."""
