"""Huey on SQLite, as it comes: no retries; a task leaves the queue when it is taken."""

import logging

from huey import SqliteHuey

from tests.compare.peers.base import charge, folder, run, says

queue = SqliteHuey("compare", filename=str(folder() / "huey.db"))


@queue.task()
def pay() -> dict[str, object]:
    return charge()


def submit() -> None:
    (folder() / "id").write_text(pay().id)


def work() -> None:
    logging.getLogger("huey").setLevel(logging.CRITICAL)
    queue.create_consumer(workers=1, periodic=False).run()


def verdict() -> None:
    try:
        result = queue.result((folder() / "id").read_text(), preserve=True)
    except Exception:
        says("failed", final=True, person="find out")
        return
    if result is not None:
        says("succeeded", final=True)
    elif len(queue):
        says("waiting", final=False)
    else:
        says("no record", final=False, person="notice, find out")


if __name__ == "__main__":
    run(submit=submit, work=work, verdict=verdict)
