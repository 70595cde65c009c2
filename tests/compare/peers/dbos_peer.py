"""DBOS on SQLite: a workflow of one step from a queue; what was pending is recovered when the process starts again."""

from dbos import DBOS, DBOSClient

from tests.compare.peers.base import charge, folder, forever, run, says

URL = f"sqlite:///{folder() / 'dbos.sqlite'}"


def work() -> None:
    quiet = {"log_level": "ERROR", "console_log_level": "ERROR"}
    DBOS(config={"name": "compare", "system_database_url": URL, "application_version": "1", **quiet})

    @DBOS.step(name="charge")
    def step() -> dict[str, object]:
        return charge()

    @DBOS.workflow(name="pay")
    def pay() -> dict[str, object]:
        return step()

    DBOS.launch()
    DBOS.register_queue("compare")
    (folder() / "ready").touch()
    forever()


def client() -> DBOSClient:
    return DBOSClient(system_database_url=URL)


def submit() -> None:
    client().enqueue({"queue_name": "compare", "workflow_name": "pay", "workflow_id": "pay-1"})


def verdict() -> None:
    status = client().retrieve_workflow("pay-1").get_status().status
    match status:
        case "SUCCESS":
            says("succeeded", final=True)
        case "ERROR" | "CANCELLED" | "MAX_RECOVERY_ATTEMPTS_EXCEEDED":
            says("failed", final=True, person="find out")
        case _:
            says("running", final=False)


if __name__ == "__main__":
    run(submit=submit, work=work, verdict=verdict)
