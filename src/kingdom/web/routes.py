"""The table of routes: every method and path, its right, its function and its types."""

from typing import Any

from kingdom.access.credentials import Credential
from kingdom.access.rights import Right
from kingdom.court.documents import Assignment, ExternalEvent
from kingdom.court.explain.timeline import Timeline
from kingdom.court.followups.summary import FollowupSummary
from kingdom.court.health_summary import HealthSummary
from kingdom.court.king.simulation import RoutingSimulation
from kingdom.court.king.why import EventExplanation
from kingdom.court.package import Package
from kingdom.court.status import CourtStatus
from kingdom.soldiers.host.run_diffs import TreeDiff
from kingdom.views.bus import (
    ExplainedSituation,
    LoggedEntryView,
    PauseResult,
    PinView,
    ResumeResult,
    StreamStatsView,
    StreamThroughputView,
)
from kingdom.views.costs import Costs
from kingdom.views.dead_letters import DeadLetterDetails, DeadLetterKey, DiscardResult, ListedDeadLetter, RedriveResult
from kingdom.views.generals import ListedGenerals
from kingdom.views.health import MachineUse
from kingdom.views.petitions import ListedPetition, PetitionDetails
from kingdom.views.questions import AnswerResult, OpenQuestion
from kingdom.views.workflows import CheckpointDetails, WorkflowDetails
from kingdom.web.api import administration, bus, court, live, people, runs, transcripts
from kingdom.web.route import ApiRoute, Audience, Empty, Page, PageQuery, page_of
from kingdom.web.stream import EVENT_STREAM
from kingdom.web.stream import PATH as STREAM_PATH
from kingdom.workflow.model.resources.host import Host
from kingdom.workflow.model.run.workflow import Workflow

API = "/api/v1"
_LOOK, _ANSWER, _ACT, _ADMINISTER = Right.LOOK, Right.ANSWER, Right.ACT, Right.ADMINISTER


def _get(path: str, right: Right | Audience, run: Any, result: Any, query: Any = None) -> ApiRoute:
    return ApiRoute(method="GET", path=path, right=right, run=run, result=result, query=query)


def _post(path: str, right: Right | Audience, run: Any, result: Any, body: Any = None) -> ApiRoute:
    return ApiRoute(method="POST", path=path, right=right, run=run, result=result, body=body, takes_key=True)


def _credential_route(
    method: Any, path: str, right: Right | Audience, run: Any, result: Any, body: Any = None
) -> ApiRoute:
    """Return a route about a credential, which takes no Idempotency-Key."""
    return ApiRoute(method=method, path=path, right=right, run=run, result=result, body=body)


READ_ROUTES: tuple[ApiRoute, ...] = (
    _get(f"{API}/status", _LOOK, court.show_status, CourtStatus),
    _get(f"{API}/health", _LOOK, court.show_health, HealthSummary),
    _get(f"{API}/health/machines", _LOOK, court.list_machines, Page[MachineUse], PageQuery),
    _get(f"{API}/costs", _LOOK, court.show_costs, Costs, court.CostsQuery),
    _get(f"{API}/runs", _LOOK, runs.list_runs, Page[Workflow], runs.RunsQuery),
    _get(f"{API}/runs/{{id}}", _LOOK, runs.show_run, WorkflowDetails),
    _get(f"{API}/runs/{{id}}/checkpoints", _LOOK, runs.list_checkpoints, Page[CheckpointDetails], PageQuery),
    _get(
        f"{API}/runs/{{id}}/transcript",
        _LOOK,
        transcripts.list_transcript,
        transcripts.TranscriptPart,
        transcripts.TranscriptQuery,
    ),
    _get(f"{API}/runs/{{id}}/diff", _LOOK, transcripts.list_diffs, Page[TreeDiff], transcripts.DiffQuery),
    _get(
        f"{API}/runs/{{id}}/checkpoints/{{checkpoint}}/diff",
        _LOOK,
        transcripts.list_checkpoint_diffs,
        Page[TreeDiff],
        transcripts.CheckpointDiffQuery,
    ),
    _get(f"{API}/runs/{{id}}/log", _LOOK, runs.list_run_log, page_of(LoggedEntryView), PageQuery),
    _get(f"{API}/log", _LOOK, runs.list_log, page_of(LoggedEntryView), PageQuery),
    ApiRoute(
        method="GET",
        path=STREAM_PATH,
        right=_LOOK,
        run=live.follow_log,
        result=str,
        query=live.FollowQuery,
        media=EVENT_STREAM,
    ),
    _get(f"{API}/events", _LOOK, court.list_events, Page[ExternalEvent], court.EventsQuery),
    _get(f"{API}/events/{{id}}", _LOOK, court.show_event, ExternalEvent),
    _get(f"{API}/events/{{id}}/why", _LOOK, court.show_event_why, EventExplanation),
    _get(f"{API}/explain/{{id}}", _LOOK, court.explain, Timeline),
    _get(f"{API}/assignments", _LOOK, court.list_assignments, Page[Assignment], court.AssignmentsQuery),
    _get(f"{API}/assignments/{{id}}", _LOOK, court.show_assignment, Assignment),
    _get(f"{API}/followups", _LOOK, court.list_followups, Page[FollowupSummary], court.FollowupsQuery),
    _get(f"{API}/questions", _LOOK, people.list_questions, Page[OpenQuestion], PageQuery),
    _get(f"{API}/petitions", _LOOK, people.list_petitions, Page[ListedPetition], people.PetitionsQuery),
    _get(f"{API}/petitions/{{id}}", _LOOK, people.show_petition, PetitionDetails),
    _get(f"{API}/bus/streams", _LOOK, bus.list_streams, page_of(StreamStatsView), PageQuery),
    _get(f"{API}/bus/throughput", _LOOK, bus.list_throughput, page_of(StreamThroughputView), PageQuery),
    _get(f"{API}/bus/pins", _LOOK, bus.list_pins, page_of(PinView), PageQuery),
    _get(f"{API}/bus/events/{{id}}", _LOOK, bus.show_bus_event, page_of(ExplainedSituation)),
    _get(f"{API}/bus/dead-letters", _LOOK, bus.list_dead_letters, page_of(ListedDeadLetter), bus.LettersQuery),
    _get(f"{API}/bus/dead-letters/{{id}}", _LOOK, bus.show_dead_letter, page_of(DeadLetterDetails), bus.StreamQuery),
    _get(f"{API}/generals", _LOOK, court.list_generals, ListedGenerals),
    _get(f"{API}/generals/{{name}}", _LOOK, court.show_general, Package),
    ApiRoute(
        method="POST",
        path=f"{API}/generals/{{name}}/simulate",
        right=_ACT,
        run=court.post_general_simulate,
        result=RoutingSimulation,
        body=court.SimulateGeneral,
    ),
    _get(f"{API}/hosts", _LOOK, court.list_hosts, Page[Host], PageQuery),
)
CHANGE_ROUTES: tuple[ApiRoute, ...] = (
    _post(f"{API}/questions/{{id}}/answer", _ANSWER, people.post_answer, AnswerResult, people.AnswerToQuestion),
    _post(f"{API}/petitions/{{id}}/approve", _ANSWER, people.post_approve, AnswerResult, people.Decision),
    _post(f"{API}/petitions/{{id}}/reject", _ANSWER, people.post_reject, AnswerResult, people.Decision),
    _post(f"{API}/runs/{{id}}/pause", _ACT, runs.post_run_pause, Workflow),
    _post(f"{API}/runs/{{id}}/resume", _ACT, runs.post_run_resume, Workflow, runs.ResumeRun),
    _post(f"{API}/runs/{{id}}/modify", _ACT, runs.post_run_modify, Workflow, runs.ModifyRun),
    _post(f"{API}/runs/{{id}}/cancel", _ACT, runs.post_run_cancel, Workflow),
    _post(f"{API}/events", _ACT, court.post_event, ExternalEvent, court.EventToSend),
    _post(f"{API}/events/{{id}}/reroute", _ACT, court.post_event_reroute, ExternalEvent),
    _post(f"{API}/bus/streams/{{name}}/pause", _ACT, bus.post_stream_pause, PauseResult, bus.PauseStream),
    _post(f"{API}/bus/streams/{{name}}/resume", _ACT, bus.post_stream_resume, ResumeResult),
    _post(f"{API}/bus/redrive", _ACT, bus.post_redrive, RedriveResult, bus.RedriveLetters),
    # By changing a payload, a visitor with only the right `act` could answer a question or change an approved petition.
    _post(
        f"{API}/bus/dead-letters/{{id}}/patch", _ADMINISTER, bus.post_dead_letter_patch, DeadLetterKey, bus.PatchLetter
    ),
    _post(
        f"{API}/bus/dead-letters/{{id}}/discard", _ACT, bus.post_dead_letter_discard, DiscardResult, bus.DiscardLetter
    ),
    _post(f"{API}/hosts/{{name}}/drain", _ADMINISTER, court.post_host_drain, Host),
    _post(f"{API}/hosts/{{name}}/undrain", _ADMINISTER, court.post_host_undrain, Host),
    _post(f"{API}/hosts/{{name}}/retire", _ADMINISTER, court.post_host_retire, Host, court.RetireHost),
)
ACCESS_ROUTES: tuple[ApiRoute, ...] = (
    _credential_route(
        "POST",
        f"{API}/session",
        Audience.EVERYONE,
        administration.post_session,
        administration.Myself,
        administration.SignIn,
    ),
    _credential_route("DELETE", f"{API}/session", Audience.SIGNED_IN, administration.delete_session, Empty),
    _get(f"{API}/me", Audience.SIGNED_IN, administration.show_me, administration.Myself),
    _get(f"{API}/tokens", _ADMINISTER, administration.list_tokens, Page[Credential], PageQuery),
    _credential_route(
        "POST",
        f"{API}/tokens",
        _ADMINISTER,
        administration.post_token,
        administration.IssuedSecret,
        administration.NewToken,
    ),
    _credential_route("DELETE", f"{API}/tokens/{{name}}", _ADMINISTER, administration.delete_token, Page[Credential]),
    _credential_route(
        "POST",
        f"{API}/invites",
        _ADMINISTER,
        administration.post_invite,
        administration.IssuedSecret,
        administration.NewInvite,
    ),
    _get(f"{API}/sessions", _ADMINISTER, administration.list_sessions, Page[Credential], PageQuery),
    _credential_route(
        "DELETE", f"{API}/sessions/{{name}}", _ADMINISTER, administration.delete_sessions, Page[Credential]
    ),
)
API_ROUTES: tuple[ApiRoute, ...] = (*READ_ROUTES, *CHANGE_ROUTES, *ACCESS_ROUTES)
