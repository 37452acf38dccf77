from kingdom.demo.report import Ended, findings

ONCE = {"reviews": 1, "comments": 1, "pull_requests": 1, "ticket_comments": 1, "slack_messages": 9}
DONE = [Ended(task_id="task-1", general="gen-a", status="completed", cost_usd=0.1)]


def test_a_story_that_went_well_has_no_findings() -> None:
    assert list(findings(DONE, ONCE, "w1-c1")) == []


def test_what_was_lost_done_twice_or_left_undone_is_found() -> None:
    undone = [Ended(task_id="task-2", general="gen-b", status="failed", cost_usd=0)]
    assert list(findings(undone, {**ONCE, "reviews": 2, "ticket_comments": 0}, "")) == [
        "task-2 of gen-b is failed",
        "people outside saw 2 reviews, not one",
        "people outside saw 0 ticket comments, not one",
        "no run went back to a checkpoint",
    ]
