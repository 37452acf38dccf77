"""What performs petitions outside."""

from kingdom.bus.worker import Worker
from kingdom.bus.worker.dispatcher import Dispatcher
from kingdom.court.petitions.github import GithubApi, GithubPetitions
from kingdom.court.petitions.jira import JiraApi, JiraPetitions
from kingdom.court.streams import PETITION_GRANTED, PETITION_STREAM
from kingdom.roles.house import House


def performer(house: House) -> Worker:
    """Return what performs petitions, as far as the realm can reach the systems that they are for."""
    dispatcher = Dispatcher()
    github, jira = house.realm.sentinel.github, house.realm.sentinel.jira
    if github:
        api = GithubApi(github.api_url, github.token)
        house.stack.push_async_callback(api.close)
        dispatcher.effect(PETITION_GRANTED["github"], GithubPetitions(api))
    if jira:
        tickets = JiraApi(jira.url, jira.email, jira.token)
        house.stack.push_async_callback(tickets.close)
        dispatcher.effect(PETITION_GRANTED["jira"], JiraPetitions(tickets))
    return Worker(house.bus, dispatcher, [PETITION_STREAM.name], metrics=house.metrics)
