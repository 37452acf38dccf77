from datetime import UTC, datetime, timedelta
from pathlib import Path

from kingdom.bootstrap import open_bus
from kingdom.court.questions import HumanQuestion, save_question
from kingdom.demo.store_watcher import AnsweredQuestion, StoreWatcher
from kingdom.realm import Realm
from kingdom.roles import declare_application

ASKED_AT = datetime(2026, 2, 7, 14, 30, tzinfo=UTC)


def question(number: int) -> HumanQuestion:
    """Return the open question of a root assignment; assignments with a lower number asked later."""
    asked_at = ASKED_AT - timedelta(minutes=number)
    return HumanQuestion(
        id=f"task-{number}",
        assignment_id=f"task-{number}",
        general="gen-ticket",
        workflow_id=f"wf-{number}",
        text=f"Question {number}?",
        asked_at=asked_at,
        due_at=asked_at + timedelta(days=1),
    )


async def test_the_question_of_the_demo_is_the_first_with_an_answer(tmp_path: Path) -> None:
    application = declare_application(Realm())
    answered = [question(number).with_answer("dana", f"answer {number}") for number in (1, 2)]
    async with open_bus(f"file:{tmp_path}", application.topology, application.kinds) as bus:
        async with bus.transaction() as transaction:
            for each in (question(0), *answered, question(3)):
                await save_question(transaction, each)
        found = await StoreWatcher(bus, tmp_path).read_question()
    assert found == AnsweredQuestion(question="Question 2?", answer="answer 2", answered_by="dana")
