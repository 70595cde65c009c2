"""Naive retry: a loop that tries three times, under a supervisor that starts it again until it ends well."""

from tests.compare.peers.base import charge, folder, run, says

ATTEMPTS = 3


def submit() -> None:
    (folder() / "todo").touch()


def work() -> None:
    for attempt in range(ATTEMPTS):
        try:
            charge()
        except Exception:
            if attempt == ATTEMPTS - 1:
                (folder() / "failed").touch()
        else:
            (folder() / "done").touch()
            return


def verdict() -> None:
    done, failed = (folder() / "done").exists(), (folder() / "failed").exists()
    says("succeeded" if done else "failed" if failed else "running", final=done or failed, person="nothing" if done else "find out")


if __name__ == "__main__":
    run(submit=submit, work=work, verdict=verdict)
