"""How long to wait before the next try or the next probe."""


def backoff_us(tries: int, *, initial_us: int, factor: float, cap_us: int, jitter: float, draw: float) -> int:
    """Return the wait after `tries` tries, in microseconds; the cap applies before the jitter.

    `draw` is a random number in [0, 1); `jitter` 0.1 lengthens the wait by up to a tenth. Raises ValueError for
    tries < 1, and never for many tries.
    Source: "Exponential Backoff And Jitter", AWS Architecture Blog.
    """
    if tries < 1:
        raise ValueError(f"tries must be 1 or more, not {tries}")
    try:
        wait = min(initial_us * max(1.0, factor) ** (tries - 1), cap_us)
    except OverflowError:  # beyond any cap
        wait = cap_us if initial_us else 0
    return int(wait * (1 + jitter * draw))
