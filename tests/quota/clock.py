"""A clock that only tests move."""


class ManualClock:
    """Monotonic seconds, as the classes under test take them: call it to read it."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
