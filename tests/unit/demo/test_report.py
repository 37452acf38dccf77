from kingdom.demo.report import DemoAssignment, find_problems

ONCE = {"reviews": 1, "comments": 1, "pull_requests": 1, "ticket_comments": 1, "slack_messages": 9}
DONE = [DemoAssignment(assignment_id="task-1", general="gen-a", status="completed", cost_usd=0.1)]


def test_a_successful_demo_has_no_problems() -> None:
    assert list(find_problems(DONE, ONCE, "w1-c1")) == []


def test_lost_repeated_and_unfinished_work_is_found() -> None:
    undone = [DemoAssignment(assignment_id="task-2", general="gen-b", status="failed", cost_usd=0)]
    assert list(find_problems(undone, {**ONCE, "reviews": 2, "ticket_comments": 0}, "")) == [
        "task-2 of gen-b is failed",
        "people outside saw 2 reviews, not one",
        "people outside saw 0 ticket comments, not one",
        "no run went back to a checkpoint",
    ]
