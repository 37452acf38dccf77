"""The role `web`: it serves the API and the pages."""

from prometheus_client import CollectorRegistry

from kingdom.bootstrap import operations_of, run_texts_of
from kingdom.errors import Misconfigured
from kingdom.roles.context import RoleComponents, RoleContext
from kingdom.web.route import WebContext
from kingdom.web.server import WebServer


def build(context: RoleContext, registry: CollectorRegistry) -> RoleComponents:
    """Return the server of the role."""
    settings = context.realm.web_settings
    if settings is None:
        raise Misconfigured("the web interface is off: remove `web: off` from kingdom.yaml")
    web_context = WebContext(
        bus=context.bus,
        operations=operations_of(context.bus),
        texts=run_texts_of(context.bus),
        settings=context.settings,
        realm=context.realm,
        web=settings,
        directory=context.directory,
    )
    return RoleComponents(runnables=(WebServer(web_context, registry),))
