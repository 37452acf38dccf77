"""The roles: a module per role builds the components of the role from the settings of a realm.

A process imports only the module of the role that it runs.
"""

from dataclasses import replace
from datetime import timedelta

from kingdom.access.acts import ACTS
from kingdom.access.credentials import KINDS as CREDENTIAL_RECORDS
from kingdom.access.servers import WEB_SERVERS
from kingdom.bus.app import Application
from kingdom.bus.stream import Topology
from kingdom.bus.worker.dispatcher import Dispatcher
from kingdom.court import records
from kingdom.court.chamberlain.records import KINDS as CHAMBERLAIN_KINDS
from kingdom.court.chamberlain.retention import store_retention, with_retention
from kingdom.court.envoy.records import ENVOYS
from kingdom.court.heartbeat import HEARTBEATS
from kingdom.court.king.records import KINDS as KING_KINDS
from kingdom.court.petitions.decision import PETITIONS
from kingdom.court.sentinel.records import KINDS as SENTINEL_KINDS
from kingdom.court.streams import STREAMS
from kingdom.realm import Realm
from kingdom.roles.process_register import REGISTERS
from kingdom.workflow.records import KINDS as WORKFLOW_KINDS

KINDS = (
    *WORKFLOW_KINDS,
    *records.KINDS,
    *KING_KINDS,
    *SENTINEL_KINDS,
    *CHAMBERLAIN_KINDS,
    *CREDENTIAL_RECORDS,
    *(PETITIONS, ENVOYS, HEARTBEATS, REGISTERS, ACTS, WEB_SERVERS),
)


def declare_application(realm: Realm) -> Application:
    """Return the application with the streams and record kinds of all roles, and the lease and retention of a realm."""
    retention, lease = realm.chamberlain.retention, timedelta(seconds=realm.lease_seconds)
    topology = Topology(replace(stream, lease=lease) for stream in STREAMS)
    return Application(topology, Dispatcher(), with_retention(KINDS, retention), store_retention(retention))
