"""The worker that performs granted petitions in GitHub and Jira."""

from kingdom.bus.worker import Worker
from kingdom.bus.worker.dispatcher import Dispatcher
from kingdom.court.petitions.github.access import github_access
from kingdom.court.petitions.github.api import GithubApi
from kingdom.court.petitions.github.check_reruns import CheckReruns
from kingdom.court.petitions.github.effect import GithubPetitions
from kingdom.court.petitions.jira import JiraApi, JiraPetitions
from kingdom.court.streams import CHECK_RERUN_DUE, PETITION_GRANTED, PETITION_STREAM
from kingdom.roles.context import RoleContext


def build_petition_worker(context: RoleContext) -> Worker:
    """Return a worker for the petitions of the systems that the realm configures."""
    dispatcher = Dispatcher()
    github, jira = context.realm.sentinel.github, context.realm.sentinel.jira
    if github:
        github_api = GithubApi(github.api_url, github_access(github))
        context.stack.push_async_callback(github_api.close)
        dispatcher.effect(PETITION_GRANTED["github"], GithubPetitions(github_api, github.logins))
        dispatcher.effect(CHECK_RERUN_DUE, CheckReruns(github_api))
    if jira:
        jira_api = JiraApi(jira.url, jira.email, jira.token)
        context.stack.push_async_callback(jira_api.close)
        dispatcher.effect(PETITION_GRANTED["jira"], JiraPetitions(jira_api))
    return Worker(context.bus, dispatcher, [PETITION_STREAM.name], metrics=context.metrics)
